"""Teacher-forced measurements on the training machine. Called by train.py at phase ends.

Every pass has the shape and the gradient mode of a training step, so nothing new is compiled. The
first rows of a batch see no memory (rows.hidden_rows) and are left out of every number.
"""

from __future__ import annotations

import math

import torch
from draft import DraftHead
from model import HEAD_NAMES, Backbone, Mode, Trace, part
from rows import Data, hidden_rows
from torch import Tensor

Rows = tuple[Tensor, Tensor]


class Exam:
    """Runs evaluation batches of a fixed number of tokens through a network."""

    def __init__(self, net: Backbone, data: Data, tokens: int) -> None:
        self.net, self.data, self.tokens = net, data, tokens

    def run(self, rows: Rows, t: int, mode: Mode) -> tuple[Tensor, Tensor, Tensor, Trace]:
        """(loss, hit, weight) [B', T] of the rows that see the memory, and the trace."""
        b, skip = self.tokens // t, hidden_rows(self.tokens // t)
        tokens, weight = rows
        trace = self.net.forward(tokens[:, :-1].contiguous(), mode._replace(hidden_rows=skip))
        _, each, hit = self.net.token_loss(
            trace.x, trace.pre, part(self.net.top, HEAD_NAMES), tokens[:, 1:].flatten(),
            weight.flatten(),
        )  # fmt: skip
        cut = (b, t)
        return each.view(cut)[skip:], hit.view(cut)[skip:].float(), weight[skip:], trace

    def text(self, name: str, t: int, mode: Mode) -> dict[str, float]:
        """Nats per token and bits per byte on the head of a held-out file."""
        b = self.tokens // t
        s = self.data.streams[name].tokens
        start = (torch.arange(b, device=s.device) * t)[:, None] % (s.shape[0] - t - 1)
        tokens = s[start + torch.arange(t + 1, device=s.device)].long()
        each, _, _, _ = self.run((tokens, torch.ones(b, t, device=s.device)), t, mode)
        nats = float(each.mean())
        per_token = self.data.bytes[name] / s.shape[0]
        return {f"{name}_nats": nats, f"{name}_bpb": nats / math.log(2) / per_token}

    def needle(self, t: int, distance: int, mode: Mode) -> float:
        """Share of value tokens found `distance` tokens after they were written."""
        rows = self.data.needles_at(self.tokens // t, t, distance)
        _, hit, weight, _ = self.run(rows, t, mode)
        return float((hit * weight).sum() / weight.sum())

    def accuracy(self, kind: str, t: int, mode: Mode, floor: float) -> float:
        """Token accuracy where the weight is at least `floor`."""
        _, hit, weight, _ = self.run(self.data.make(kind, self.tokens // t, t), t, mode)
        asked = weight >= floor
        return float(hit[asked].mean())

    def all(self, t: int, mode: Mode) -> dict[str, float]:
        """Everything that fits the length t."""
        out = self.text("val_prose", t, mode) | self.text("val_code", t, mode)
        for d in (300, 512, 2000, 4000, 7500):  # at least the span of the eight needles
            if d + 300 <= t:
                out[f"needle_{d}"] = self.needle(t, d, mode)
        if t >= 2048:
            out["needle_512_no_memory"] = self.needle(t, 512, mode._replace(memory=False))
        out["kv"] = self.accuracy("kv", t, mode, 0.9)
        out["copy"] = self.accuracy("copy", t, mode, 0.45)
        out["val_chat"] = self.accuracy("val_chat", t, mode, 1.5)
        if t >= 4096:
            out["long"] = self.accuracy("long", t, mode, 1.5)
        return {k: round(v, 4) for k, v in out.items()}

    def drafts(self, head: DraftHead, anchors: int, t: int, mode: Mode) -> dict[str, float]:
        """Tokens per verify step along given text, by domain (drafts against the argmax)."""
        out = {}
        for kind in ("val_prose", "val_code", "val_chat", "copy", "needle"):
            rows = self.data.make(kind, self.tokens // t, t)
            _, _, _, trace = self.run(rows, t, mode)
            weight = rows[1]
            if kind in ("val_chat", "copy"):
                weight = weight * (weight >= 0.45)
            weight = torch.roll(weight, -1, 1)  # the first draft is what comes after y
            weight[:, -8:] = 0
            at = torch.multinomial(weight.flatten().clamp_min(0), anchors, replacement=True)
            tokens = rows[0][:, :-1].contiguous()
            _, hit, sure = head.lesson(tokens, trace, at, mode.rounding)
            steps = hit.float().cumprod(1).sum(1).mean() + 1
            out[kind] = round(float(steps), 3)
            out[f"{kind}_confidence_right"] = round(float(sure.float().mean()), 3)
        return out
