"""Training rows: text, chat and long samples from the packed data, retrieval rows made on the GPU.

Called by train.py, evaluate.py and smoke.py. A batch is tokens [B, T+1] with a weight for every
predicted token. The first rows of a batch never see the compressed memory (model.Mode.hidden_rows)
and therefore hold only copying within the window, so that the window learns to copy.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

KINDS = ("prose", "code", "tech", "chat", "long", "kv", "needle", "copy", "near")
CLASS_WEIGHT = (0.0, 0.15, 2.0, 1.0)
FIRST_ID = 3
NEEDLE, CELL = 7, 32  # tokens of a needle, text cell that may hold one
Mix = dict[str, float]

SHORT_MIX: Mix = {"prose": 0.13, "code": 0.06, "tech": 0.06, "chat": 0.25, "kv": 0.25,
                  "needle": 0.10, "copy": 0.15}  # fmt: skip
MIDDLE_MIX: Mix = {"prose": 0.14, "code": 0.06, "tech": 0.06, "chat": 0.29, "long": 0.10,
                   "kv": 0.11, "needle": 0.18, "copy": 0.06}  # fmt: skip
SERVED_MIX: Mix = {"prose": 0.07, "code": 0.09, "tech": 0.12, "chat": 0.27, "long": 0.16,
                   "kv": 0.08, "needle": 0.18, "copy": 0.03}  # fmt: skip
DRAFT_MIX: Mix = {"prose": 0.15, "code": 0.12, "tech": 0.15, "chat": 0.40, "long": 0.08,
                  "needle": 0.04, "copy": 0.06}  # fmt: skip
LONG_MIX: Mix = {"prose": 0.13, "code": 0.06, "tech": 0.06, "chat": 0.26, "long": 0.19, "kv": 0.09,
                 "needle": 0.15, "copy": 0.06}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Batch:
    """tokens [B, T], target [B, T], weight [B, T], kind [B] (index into KINDS)."""

    tokens: Tensor
    target: Tensor
    weight: Tensor
    kind: Tensor


@dataclass(frozen=True, slots=True)
class Stream:
    """One packed file on the device."""

    tokens: Tensor
    classes: Tensor | None
    starts: Tensor


def hidden_rows(b: int) -> int:
    """How many rows of a batch see no compressed memory: about 5 %, at least one."""
    return max(1, round(0.05 * b))


class Data:
    """The packed data set on the device and the row makers."""

    def __init__(self, folder: Path, device: str, seed: int = 0) -> None:
        self.device = device
        self.gen = torch.Generator(device=device).manual_seed(seed)
        self.meta = json.loads((folder / "meta.json").read_text())
        self.streams: dict[str, Stream] = {}
        self.fitting: dict[tuple[str, int], Tensor] = {}
        names = {"prose": "text_prose", "code": "text_code", "tech": "text_tech", "chat": "chat",
                 "long": "long", "val_prose": "val_prose", "val_code": "val_code",
                 "val_chat": "val_chat"}  # fmt: skip
        for kind, name in names.items():
            with np.load(folder / f"{name}.npz") as f:
                classes = self._device(f["classes"]) if "classes" in f else None
                starts = torch.as_tensor(f["starts"].astype(np.int64), device=device)
                self.streams[kind] = Stream(self._device(f["tokens"]), classes, starts)
        with np.load(folder / "val_prose.npz") as p, np.load(folder / "val_code.npz") as c:
            self.bytes = {"val_prose": int(p["bytes"].sum()), "val_code": int(c["bytes"].sum())}
        specials = [v for v in self.meta["specials"].values() if v > FIRST_ID]
        self.last_id = min(specials)
        self.class_weight = torch.tensor(CLASS_WEIGHT, device=device)

    def _device(self, a: np.ndarray) -> Tensor:
        return torch.as_tensor(a.astype(np.int32), device=self.device)

    def _ints(self, high: int, *size: int) -> Tensor:
        return torch.randint(high, size, generator=self.gen, device=self.device)

    def _rand(self, *size: int) -> Tensor:
        return torch.rand(*size, generator=self.gen, device=self.device)

    def _words(self, *size: int) -> Tensor:
        return FIRST_ID + self._ints(self.last_id - FIRST_ID, *size)

    # ------------------------------------------------------------ rows from files

    def text(self, kind: str, n: int, t: int) -> tuple[Tensor, Tensor]:
        """Pieces of running text from random places, all weights 1."""
        s = self.streams[kind].tokens
        at = self._ints(s.shape[0] - t - 1, n, 1) + torch.arange(t + 1, device=self.device)
        return s[at].long(), torch.ones(n, t, device=self.device)

    def samples(self, kind: str, n: int, t: int) -> tuple[Tensor, Tensor]:
        """Rows that begin at a sample's BOS and run over the following samples.

        Only samples that fit the row begin one: the answers of long samples are at their ends.
        """
        s = self.streams[kind]
        assert s.classes is not None
        if (kind, t) not in self.fitting:
            size = torch.diff(s.starts, append=s.starts.new_tensor([s.tokens.shape[0]]))
            self.fitting[kind, t] = s.starts[size <= t + 1]
        starts = self.fitting[kind, t]
        begin = starts[self._ints(starts.shape[0], n)]
        at = (begin[:, None] + torch.arange(t + 1, device=self.device)) % s.tokens.shape[0]
        return s.tokens[at].long(), self.class_weight[s.classes[at[:, 1:]]]

    # ------------------------------------------------------------ rows made here

    def kv(self, n: int, t: int) -> tuple[Tensor, Tensor]:
        """Key-value streams: slots `key a value b`; about half of them ask an earlier key again."""
        dev = self.device
        klen, vlen = 1 + self._ints(3, n, 1), 1 + self._ints(3, n, 1)
        size = klen + vlen + 2
        slots = t // 4 + 2
        i = torch.arange(slots, device=dev).expand(n, -1)
        u = self._rand(n, slots)
        far = (u * i).long()
        near = i - torch.exp(u * torch.log(i.clamp_min(1).float())).long().clamp_min(1)
        late = self._rand(n, 1) < 0.5  # in these rows all questions come in the second half
        count = t // size
        source = torch.where(late | (self._rand(n, slots) < 0.5), far, near)
        early = far.remainder(count.clamp_min(2) // 2)
        source = torch.where(late & (i > count // 2), early, source)
        ask = torch.where(late, i > count // 2, self._rand(n, slots) < 0.5) & (i > 0)
        root = torch.where(ask, source.clamp_min(0), i)
        for _ in range(14):
            root = root.gather(1, root)
        words = self._words(n, slots, 6)
        marks = self._words(n, 2)
        pos = torch.arange(t + 1, device=dev).expand(n, -1)
        slot, off = pos // size, pos % size
        own = root.gather(1, slot)
        pick = torch.where(off < klen, off, (off - klen + 2).clamp(0, 5))
        token = words.flatten(1).gather(1, own * 6 + pick)
        token = torch.where(off == klen, marks[:, :1], token)
        token = torch.where(off == size - 1, marks[:, 1:], token)
        value = (off > klen) & (off < size - 1)
        weight = torch.where(value & (own != slot), 1.0, 0.0) + 0.1 * (off == klen)
        return self._begin(token, weight)

    def _begin(self, token: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """Put BOS in front; weight is per token of the row and moves to the predicted place."""
        token = torch.cat([torch.zeros_like(token[:, :1]), token[:, :-1]], 1)
        return token, weight[:, :-1]

    def background(self, n: int, t: int) -> Tensor:
        """Text tokens [n, t+1] that hold needles and copies."""
        half = n // 2
        return torch.cat([self.text("prose", n - half, t)[0], self.text("tech", half, t)[0]])

    def needle(self, n: int, t: int) -> tuple[Tensor, Tensor]:
        """Text with needles `m1 k1 k2 m2 v1 v2 v3`, each written once and asked once later.

        Half of the rows hold many needles, half hold eight that lie far from their questions.
        """
        cells, many = t // CELL, n // 2
        pairs = max(1, cells // 4)
        order = self._rand(many, cells).argsort(1)[:, : 2 * pairs].unflatten(1, (pairs, 2))
        dense = self._write_needles(
            self.background(many, t), self._places(order.sort(-1).values), 0.4, 2.0
        )
        half, few = cells // 2, min(8, cells // 2)
        source = self._rand(n - many, half).argsort(1)[:, :few]
        asked = half + self._rand(n - many, cells - half).argsort(1)[:, :few]
        far = self._write_needles(
            self.background(n - many, t), self._places(torch.stack([source, asked], -1)), 0.2, 6.0
        )
        return torch.cat([dense[0], far[0]]), torch.cat([dense[1], far[1]])

    def _places(self, cells: Tensor) -> Tensor:
        """A random place inside each cell."""
        return cells * CELL + 1 + self._ints(CELL - NEEDLE - 1, *cells.shape)

    def _write_needles(
        self, tokens: Tensor, place: Tensor, text_weight: float, value_weight: float
    ) -> tuple[Tensor, Tensor]:
        """Write needles at place [n, pairs, 2] (source, question) into tokens [n, T+1]."""
        n, pairs, _ = place.shape
        marks = self._words(n, 1, 2).expand(-1, pairs, -1)
        words = self._words(n, pairs, 5)
        text = torch.cat([marks[..., :1], words[..., :2], marks[..., 1:], words[..., 2:]], -1)
        at = place[..., None] + torch.arange(NEEDLE, device=self.device)
        tokens = tokens.clone()
        tokens.scatter_(1, at.flatten(1), text[:, :, None].expand(-1, -1, 2, -1).flatten(1))
        weight = torch.full(tokens.shape, text_weight, device=self.device)
        each = torch.zeros(2, NEEDLE, device=self.device)
        each[1, 4:] = value_weight
        weight.scatter_(1, at.flatten(1), each.expand(n, pairs, -1, -1).flatten(1))
        return tokens, weight[:, 1:]

    def needles_at(self, n: int, t: int, distance: int) -> tuple[Tensor, Tensor]:
        """For evaluation: eight needles a row, each asked exactly `distance` tokens later."""
        base = t - distance - 8 * CELL - NEEDLE
        first = base + CELL * torch.arange(8, device=self.device).expand(n, -1)
        tokens, weight = self._write_needles(
            self.background(n, t), torch.stack([first, first + distance], -1), 0.4, 2.0
        )
        return tokens, (weight > 1).float()

    def copy(self, n: int, t: int, longest: int) -> tuple[Tensor, Tensor]:
        """Spans of random words or of text, each followed by its repetition."""
        high = torch.log(torch.tensor(longest / 4.0))
        span = (4 * torch.exp(self._rand(n, 1) * high)).long()
        random = self._rand(n, 1) < 0.5
        base = torch.where(random, self._words(n, t + 1), self.background(n, t))
        pos = torch.arange(t + 1, device=self.device).expand(n, -1)
        block, off = pos // (2 * span), pos % (2 * span)
        token = base.gather(1, block * 2 * span + off % span)
        again = off >= span
        weight = torch.where(again, 0.5, torch.where(random, 0.0, 0.4))
        return self._begin(token, weight)

    # ------------------------------------------------------------ batches

    def make(self, kind: str, n: int, t: int) -> tuple[Tensor, Tensor]:
        """n rows of one kind: tokens [n, T+1] and weights [n, T]."""
        if kind in ("chat", "long", "val_chat"):
            return self.samples(kind, n, t)
        if kind == "copy":
            return self.copy(n, t, t // 4)
        if kind == "near":
            return self.copy(n, t, 56)
        if kind in ("kv", "needle"):
            return getattr(self, kind)(n, t)
        return self.text(kind, n, t)

    def batch(self, b: int, t: int, mix: Mix, *, noise: float = 0.0) -> Batch:
        """A batch of b rows; shares of `mix` are kept on average by a random rounding.

        noise: the largest share of input tokens of a prose row that random words replace (what is
        predicted stays the text). Prose is the smallest file and would be learned by heart.
        """
        counts = {"near": hidden_rows(b)}
        free = b - counts["near"]
        names = list(mix)
        share = torch.tensor(list(mix.values()), dtype=torch.float64)
        edges = (torch.cumsum(share, 0) / share.sum() * free).tolist()
        shift, last = float(torch.rand(())), 0
        for name, edge in zip(names, edges, strict=True):
            upto = free if name == names[-1] else min(free, int(edge + shift))
            counts[name] = upto - last
            last = upto
        made = [(k, self.make(k, c, t)) for k, c in counts.items() if c > 0]
        made_batch = join(made, self.device)
        if noise == 0:
            return made_batch
        rate = self._rand(b, 1) * noise * (made_batch.kind == 0)[:, None]
        swap = self._rand(b, t) < rate
        tokens = torch.where(swap, self._words(b, t), made_batch.tokens)
        return replace(made_batch, tokens=tokens)


def join(made: list[tuple[str, tuple[Tensor, Tensor]]], device: str) -> Batch:
    """One batch from rows of several kinds, in the order given."""
    tokens = torch.cat([m[0] for _, m in made])
    kinds = [KINDS.index(k) if k in KINDS else 0 for k, m in made for _ in range(len(m[0]))]
    return Batch(
        tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous(),
        torch.cat([m[1] for _, m in made]), torch.tensor(kinds, device=device),
    )  # fmt: skip
