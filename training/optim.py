"""Muon for matrices, AdamW for everything else (seedling.md 3). Called by train.py."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from model import Params
from torch import Tensor

MUON = {"wq_a", "wq_b", "wkv", "wo_a", "wo_b", "w1", "w3", "w2", "c_wkv", "c_wgate", "e_wkv",
        "main_proj"}  # fmt: skip
ADAM_RATE = {"embed": 4e-3, "m_embed": 4e-3, "e_table": 5e-3}
INDEXER = {"i_wq_b", "i_proj", "i_wk", "i_norm"}
FIXED = {"gate_bias"}
MUON_RATE, ADAM_DEFAULT, INDEXER_RATE, DECAY = 0.02, 2e-3, 3e-3, 0.05


def orthogonal(g: Tensor) -> Tensor:
    """Five Newton-Schulz steps on [n, r, c] with r <= c, in bf16."""
    x = g.to(torch.bfloat16)
    x = x / (x.float().norm(dim=(-2, -1), keepdim=True) + 1e-7).to(x.dtype)
    for _ in range(5):
        a = x @ x.mT
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
    return x


class Optimizer:
    """One step over the named parameters; rates are scaled by a factor per step."""

    def __init__(self, named: Iterable[tuple[str, Tensor]]) -> None:
        self.stacks: dict[tuple[int, int], list[tuple[Tensor, bool]]] = {}
        self.momentum: dict[tuple[int, int], Tensor] = {}
        groups: dict[str, list[Tensor]] = {}
        for name, p in named:
            if name in FIXED:
                continue
            p.requires_grad_()
            if name in MUON:
                r, c = p.shape[-2:]
                self.stacks.setdefault((min(r, c), max(r, c)), []).append((p, r > c))
            else:
                groups.setdefault("indexer" if name in INDEXER else name, []).append(p)
        self.adam = torch.optim.AdamW(
            [{"params": v, "name": k, "lr": 0.0} for k, v in groups.items()],
            betas=(0.9, 0.95), eps=1e-10, weight_decay=0.0, fused=True,
        )  # fmt: skip
        self.others = [p for k, v in groups.items() if k != "indexer" for p in v]
        self.rates = {k: ADAM_RATE.get(k, ADAM_DEFAULT) for k in groups}

    @torch.no_grad()
    def step(self, factor: float, indexer_factor: float) -> Tensor:
        """Apply and clear the gradients; returns the norm of the AdamW gradients."""
        grads = [p.grad for p in self.others if p.grad is not None]
        norm = torch.zeros(())
        if grads:
            norm = torch.nn.utils.get_total_norm(grads)
            torch._foreach_mul_(grads, (1.0 / norm.clamp_min(1.0)).to(grads[0].device))
        for group in self.adam.param_groups:
            if group["name"] == "indexer":
                group["lr"] = INDEXER_RATE * indexer_factor
            else:
                group["lr"] = self.rates[group["name"]] * factor
        self.adam.step()
        self.adam.zero_grad(set_to_none=True)
        for key, members in self.stacks.items():
            if members[0][0].grad is not None:
                self._muon(key, members, MUON_RATE * factor)
        return norm

    def _muon(self, key: tuple[int, int], members: list[tuple[Tensor, bool]], rate: float) -> None:
        flat = [(p.grad.mT if tall else p.grad).reshape(-1, *key) for p, tall in members]
        g = torch.cat(flat)
        m = self.momentum.setdefault(key, torch.zeros_like(g))
        m.lerp_(g, 0.05)
        u = orthogonal(g.lerp(m, 0.95)).float()
        start = 0
        for (p, tall), part in zip(members, flat, strict=True):
            piece = u[start : start + part.shape[0]]
            start += part.shape[0]
            piece = (piece.mT if tall else piece).reshape(p.shape)
            scale = max(1.0, p.shape[-2] / p.shape[-1]) ** 0.5
            p.mul_(1 - rate * DECAY).add_(piece, alpha=-rate * scale)
            p.grad = None


def named_parameters(*groups: Params) -> list[tuple[str, Tensor]]:
    """(short name, tensor) of several parameter dicts."""
    return [(k, v) for p in groups for k, v in p.items()]
