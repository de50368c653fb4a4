"""Train the seedling: dense curriculum, indexer, served form, draft head (README.md here).

Run on one GPU: `python train.py --data DIR --out DIR --plan full`. Phases go by wall clock. Every
phase ends with an export in the released formats under OUT/ckpt and a raw state for --resume.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from draft import DraftHead
from evaluate import Exam
from export import load_params, open_checkpoint, released_tensors, save_checkpoint
from model import HEAD_NAMES, Backbone, Mode, part
from optim import Optimizer, named_parameters
from quant import SERVED
from rows import DRAFT_MIX, KINDS, LONG_MIX, MIDDLE_MIX, SERVED_MIX, SHORT_MIX, Data, hidden_rows
from shape import shape_from_config

HERE = Path(__file__).parent
TOKENS = 131072
ANCHORS = 16384
WARMUP = 60
ADAPT = 0.3  # rates of the served-form phase as a part of the peak rates


@dataclass(frozen=True, slots=True)
class Plan:
    """Seconds of every phase; adapt_lengths is the cycle of lengths in the served form."""

    dense: tuple[tuple[int, float], ...]
    indexer: tuple[tuple[int, float], ...]
    adapt: float
    draft: float
    adapt_lengths: tuple[int, ...] = (2048, 8192, 4096, 8192)
    indexer_positions: int = 48
    exams: bool = True
    least: int = 1  # steps at each length, whatever the clock says
    every: int = 20  # steps between two lines of the log
    finish: float = 0.0  # if set, adapt and draft share what is left until this second
    states: bool = True  # keep raw states to resume from


PLANS = {
    "full": Plan(
        dense=((512, 60), (2048, 110), (2048, 90), (4096, 90), (4096, 90), (8192, 130)),
        indexer=((4096, 20), (8192, 30)), adapt=295, draft=180,
    ),
    "second": Plan(  # from the exported dense weights: everything after the dense phase
        dense=(), indexer=((8192, 42),), adapt=270, draft=155, adapt_lengths=(8192, 2048, 8192),
        least=90, finish=492, states=False,
    ),
    "smoke": Plan(  # compiles every form that "full" uses, and times it
        dense=((512, 14), (2048, 0), (4096, 0), (8192, 0)), indexer=((8192, 0),), adapt=0,
        draft=0, adapt_lengths=(2048, 4096, 8192), exams=False, least=7, every=3,
    ),
    "tiny": Plan(
        dense=((512, 1),), indexer=((512, 1),), adapt=1, draft=1, adapt_lengths=(512,),
        indexer_positions=4,
    ),
}  # fmt: skip


@dataclass(slots=True)
class Clock:
    """Wall time since the start, and steps and tokens so far."""

    start: float = field(default_factory=time.time)
    steps: int = 0
    tokens: int = 0

    def now(self) -> float:
        return time.time() - self.start


class Trainer:
    """Everything the phases share."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.clock = args, Clock()
        self.newer = False
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        self.dtype = torch.bfloat16 if self.device == "cuda" else torch.float32
        self.plan: Plan = PLANS[args.plan]
        self.total = args.tokens
        self.out = Path(args.out)
        self.out.mkdir(parents=True, exist_ok=True)
        data = Path(args.data)
        self.config = complete_config(json.loads((HERE / "config.json").read_text()), data)
        self.data = Data(data, self.device)
        shape = shape_from_config(self.config)
        self.net = Backbone(shape, np.load(data / "engram_map.npy"), self.device, self.dtype)
        self.draft = DraftHead(self.net)
        self.exam = Exam(self.net, self.data, self.total)
        self.log_file = (self.out / "log.jsonl").open("a")
        if args.resume:
            self.load_state(Path(args.resume))
        self.opt = Optimizer(named_parameters(self.net.top, *self.net.layers))
        self.log({"event": "start", "plan": args.plan, "device": self.device})

    # ------------------------------------------------------------ records

    def log(self, record: dict) -> None:
        """One line of log.jsonl, also to stdout."""
        if self.device == "cuda":
            torch.cuda.synchronize()
        head = {"s": round(self.clock.now(), 1), "step": self.clock.steps}
        line = json.dumps(head | {"mtok": round(self.clock.tokens / 1e6, 1)} | record)
        self.log_file.write(line + "\n")
        self.log_file.flush()
        print(line, flush=True)

    def save(self, phase: str, *, state: bool = True) -> None:
        """Export in the released formats, and the raw state to resume from."""
        began = time.time()
        draft = self.draft
        tensors = released_tensors(self.net.top, self.net.layers, draft.top, draft.blocks)
        fresh = self.out / "ckpt.new"
        shutil.rmtree(fresh, ignore_errors=True)
        files = save_checkpoint(tensors, fresh)
        (fresh / "config.json").write_text(json.dumps(self.config, indent=2) + "\n")
        (fresh / "phase.txt").write_text(phase + "\n")
        shutil.rmtree(self.out / "ckpt", ignore_errors=True)
        fresh.rename(self.out / "ckpt")
        if state and self.plan.states:
            raw = {"top": self.net.top, "layers": self.net.layers, "draft_top": draft.top,
                   "draft": draft.blocks, "phase": phase}  # fmt: skip
            torch.save(raw, self.out / "state.new")
            (self.out / "state.new").rename(self.out / "state.pt")
        took = round(time.time() - began, 1)
        self.log({"event": "saved", "phase": phase, "files": files, "took": took})

    def load_state(self, path: Path) -> None:
        """Parameters of an earlier run, from a raw state or an exported checkpoint folder.

        Of a folder only the backbone is read: the draft head starts anew.
        """
        if path.is_dir():
            get, has = open_checkpoint(path)
            load_params(get, has, self.net.s, self.net.top, self.net.layers, None, [])
            self.net.top = {k: v.to(self.device) for k, v in self.net.top.items()}
            self.net.layers = [
                {k: v.to(self.device) for k, v in p.items()} for p in self.net.layers
            ]
            return
        raw = torch.load(path, map_location=self.device)
        self.net.top, self.net.layers = raw["top"], raw["layers"]
        self.draft.top, self.draft.blocks = raw["draft_top"], raw["draft"]

    def refresh(self) -> None:
        """Take a larger data set that arrived after the start, if there is one."""
        newer = Path(f"{self.args.data}-newer")
        if (newer / "ready").exists() and not self.newer:
            self.newer = True
            self.data = Data(newer, self.device)
            self.exam.data = self.data
            self.log({"event": "newer data", "counts": self.data.meta["counts"]})

    def examine(self, label: str, t: int, mode: Mode) -> None:
        """Log an evaluation."""
        if self.plan.exams:
            began = time.time()
            result = self.exam.all(t, mode)
            took = round(time.time() - began, 1)
            self.log({"event": "exam", "label": label, "T": t, "took": took} | result)

    # ------------------------------------------------------------ one step

    def step(self, t: int, mode: Mode, factor: float, *, index_factor: float = 0.0) -> None:
        """One optimizer step at length t; factor scales the rates, 0 freezes the backbone."""
        b = self.total // t
        mix = SHORT_MIX if t <= 512 else MIDDLE_MIX if t <= 2048 else LONG_MIX
        if mode.rounding == SERVED:
            mix = SERVED_MIX
        batch = self.data.batch(b, t, mix, noise=0.25 if mix is SERVED_MIX else 0.0)
        kl_at = None
        if index_factor > 0:
            low = min(256, t // 4)
            kl_at = low + self.data._ints(t - low, self.plan.indexer_positions)
        mode = mode._replace(hidden_rows=hidden_rows(b))
        trace = self.net.forward(batch.tokens, mode, kl_at=kl_at)
        loss, each, hit = self.net.token_loss(
            trace.x, trace.pre, part(self.net.top, HEAD_NAMES), batch.target.flatten(),
            batch.weight.flatten(),
        )  # fmt: skip
        kl = torch.stack(trace.kl).sum() if trace.kl else torch.zeros((), device=self.device)
        (kl if factor == 0 else loss + kl).backward()
        norm = self.opt.step(factor, index_factor)
        balance(self.net.layers, trace.loads, factor)
        self.clock.steps += 1
        self.clock.tokens += self.total
        if self.clock.steps % self.plan.every == 0:
            self.report(t, batch, each, hit, loss, norm, trace)
        elif self.clock.steps % 5 == 0 and self.device == "cuda":
            torch.cuda.synchronize()

    def report(self, t, batch, each, hit, loss, norm, trace) -> None:
        """Log loss and accuracy on answer tokens by kind of row."""
        weight = batch.weight
        record: dict = {"T": t, "loss": round(float(loss), 4), "norm": round(float(norm), 3)}
        each, hit = each.view(weight.shape), hit.view(weight.shape).float()
        for i, kind in enumerate(KINDS):
            asked = (batch.kind == i)[:, None] & (weight > 0.42)
            if bool(asked.any()):
                pair = [float(each[asked].mean()), float(hit[asked].mean())]
                record[kind] = [round(v, 4) for v in pair]
        share = torch.stack([v / v.sum() for v in trace.loads])
        record["experts"] = [round(float(share.min()), 3), round(float(share.max()), 3)]
        if trace.kl:
            record["kl"] = [round(float(v), 3) for v in trace.kl]
            record["mass"] = [[round(float(x), 3) for x in m] for m in trace.mass]
        self.log(record)

    # ------------------------------------------------------------ phases

    def dense(self) -> None:
        """Everything visible, exact weights; rates constant to half time, then down to 3 %."""
        total = sum(sec for _, sec in self.plan.dense)
        begin, upto = self.clock.now(), 0.0
        first = self.clock.steps
        for t, seconds in self.plan.dense:
            self.refresh()
            upto += seconds
            until = self.clock.steps + self.plan.least
            while (done := self.clock.now() - begin) < upto or self.clock.steps < until:
                warm = min(1.0, (self.clock.steps - first + 1) / WARMUP)
                self.step(t, Mode(), warm * decay(done / total, 0.5, 0.03))
            self.examine("dense", t, Mode())
            self.save(f"dense-{t}", state=t >= 2048)

    def indexer(self) -> None:
        """Only the indexer learns, from the dense attention (on rounded weights and keys)."""
        begin, upto = self.clock.now(), 0.0
        total = sum(sec for _, sec in self.plan.indexer)
        for t, seconds in self.plan.indexer:
            upto += seconds
            until = self.clock.steps + self.plan.least
            while (done := self.clock.now() - begin) < upto or self.clock.steps < until:
                self.step(t, Mode(SERVED), 0.0, index_factor=decay(done / max(1, total), 0.6, 0.2))
        self.save("indexer")
        self.examine("plain rounding and hard choice", self.plan.indexer[-1][0],
                     Mode(SERVED, sparse=True))  # fmt: skip

    def adapt(self) -> None:
        """The served form: rounded weights, keys and inputs, hard choice; small rates."""
        begin = self.clock.now()
        total = 0.63 * (self.plan.finish - begin) if self.plan.finish else self.plan.adapt
        self.opt.momentum.clear()
        mode, saved, n = Mode(SERVED, sparse=True), 0.0, 0
        first = self.clock.steps
        while (done := self.clock.now() - begin) < total or n < self.plan.least:
            t = self.plan.adapt_lengths[n % len(self.plan.adapt_lengths)]
            n += 1
            warm = min(1.0, (self.clock.steps - first + 1) / 20)
            factor = warm * ADAPT * decay(done / max(1, total), 0.4, 0.03)
            self.step(t, mode, factor, index_factor=0.3 * factor / ADAPT)
            if done - saved > 120:
                saved = done
                self.save("adapt (not finished)")
        self.save("adapt")
        self.examine("served form", max(self.plan.adapt_lengths), mode)

    def drafting(self) -> None:
        """The draft head on the frozen backbone in its served form."""
        mode, t = Mode(SERVED, sparse=True), min(2048, self.plan.adapt_lengths[0])
        self.opt = Optimizer(named_parameters(self.draft.top, *self.draft.blocks))
        b, anchors = self.total // t, min(ANCHORS, self.total // 8)
        begin, n, saved = self.clock.now(), 0, 0.0
        total = self.plan.finish - begin if self.plan.finish else self.plan.draft
        while (done := self.clock.now() - begin) < total or n < self.plan.least:
            batch = self.data.batch(b, t, DRAFT_MIX)
            trace = self.net.forward(batch.tokens, mode._replace(hidden_rows=hidden_rows(b)))
            chance = torch.roll(batch.weight + 0.05, -1, 1)
            chance[:, -8:] = 0
            at = torch.multinomial(chance.flatten(), anchors)
            loss, hit, sure = self.draft.lesson(batch.tokens, trace, at, mode.rounding)
            loss.backward()
            clear(self.net)
            factor = min(1.0, (n + 1) / 40) * decay(done / max(1, total), 0.5, 0.03)
            norm = self.opt.step(factor, 0.0)
            balance(self.draft.blocks, self.draft.loads, factor)
            n += 1
            self.clock.steps += 1
            if n % self.plan.every == 0:
                self.log({"draft_loss": round(float(loss), 4), "norm": round(float(norm), 3),
                          "hits": [round(float(v), 3) for v in hit.float().mean(0)],
                          "sure": round(float(sure.float().mean()), 3)})  # fmt: skip
            if done - saved > 60:
                saved = done
                self.save("draft (not finished)")
        self.save("draft")
        result = self.exam.drafts(self.draft, anchors, t, mode)
        self.log({"event": "drafts", "tokens_per_step": result})


def decay(part_done: float, flat: float, last: float) -> float:
    """1 until `flat`, then linear to `last` at 1."""
    if part_done <= flat:
        return 1.0
    return max(last, 1 - (1 - last) * (part_done - flat) / (1 - flat))


@torch.no_grad()
def balance(blocks: list, loads: list, factor: float) -> None:
    """Router bias by the sign rule (seedling.md 3)."""
    for p, load in zip(blocks, loads, strict=True):
        p["gate_bias"] += 0.01 * factor * torch.sign(load.mean() - load)


def clear(net: Backbone) -> None:
    """Drop gradients that reached the frozen backbone."""
    for p in (net.top, *net.layers):
        for v in p.values():
            v.grad = None


def complete_config(config: dict, data: Path) -> dict:
    """Fill in what the tokenizer decides: token classes, Engram rows, the noise token."""
    meta = json.loads((data / "meta.json").read_text())
    text = config["text_config"]
    text["engram_compressed_vocab_size"] = meta["engram_compressed_vocab_size"]
    text["dspark_noise_token_id"] = meta["specials"]["<｜System｜>"]
    rows = shape_from_config(config).primes()
    text["engram_num_embeddings"] = [int(v.sum()) for v in rows.values()]
    return config


def main() -> None:
    """Run the phases of a plan."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--plan", choices=PLANS, default="full")
    parser.add_argument("--tokens", type=int, default=TOKENS, help="tokens a step")
    parser.add_argument("--resume", help="a state.pt or a ckpt folder to start from")
    parser.add_argument("--phases", default="dense,indexer,adapt,drafting")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    torch._dynamo.config.recompile_limit = 128
    torch._dynamo.config.accumulated_recompile_limit = 2048
    trainer = Trainer(args)
    for phase in args.phases.split(","):
        getattr(trainer, phase)()
        trainer.log({"event": "phase done", "phase": phase})
    trainer.log({"event": "end"})


if __name__ == "__main__":
    main()
