"""The DSpark draft head of model.md 6: training form (many anchors a step) and greedy drafts.

Called by train.py, evaluate.py and golden.py. An anchor is the last processed position p of a
sequence; its block holds positions p+1 .. p+5. All shapes are flat: anchors A, rows A·5.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from model import (
    HEAD_NAMES,
    IN_NAMES,
    OUT_NAMES,
    Backbone,
    Params,
    Routing,
    Trace,
    attention_in,
    block_out,
    block_params,
    collapse,
    embed,
    head_logits,
    part,
    product,
    product8,
    rms,
    window_key,
)
from quant import Rounding
from torch import Tensor

POSITION_WEIGHTS = (1.0, 0.9, 0.8, 0.7, 0.6)


def ring_keys(
    tap: Tensor, top: Params, blocks: list[Params], cos: Tensor, sin: Tensor, q: Rounding
) -> list[Tensor]:
    """6.1: the window keys [N, D] of every block from the taps [N, 3·hidden]."""
    main = rms(product8(tap, top["main_proj"], q), top["main_norm"])
    return [window_key(main, p, cos, sin, q) for p in blocks]


def block_attend(query: Tensor, key: Tensor, ring: Tensor, seen: Tensor, sink: Tensor) -> Tensor:
    """6.2 step 3. query [A·5, H, D], key [A·5, D], ring [A, W, D], seen bool [A, W]."""
    a = ring.shape[0]
    keys = torch.cat([ring, key.unflatten(0, (a, -1))], 1)
    qs = query.unflatten(0, (a, -1))
    score = torch.einsum("aihd,akd->aihk", qs, keys).float() * query.shape[-1] ** -0.5
    ok = F.pad(seen, (0, keys.shape[1] - seen.shape[1]), value=True)
    score = score.masked_fill(~ok[:, None, None], float("-inf"))
    lse = torch.logaddexp(torch.logsumexp(score, -1), sink)
    weight = torch.exp(score - lse[..., None]).to(query.dtype)
    return torch.einsum("aihk,akd->aihd", weight, keys).flatten(0, 1)


def draft_logits(x: Tensor, pre: Tensor, top: Params, head: Tensor) -> tuple[Tensor, Tensor]:
    """6.2 step 4: the collapsed rows [A·5, hidden] and their logits before the Markov step."""
    h = collapse(x, pre)
    return h, product(rms(h, top["norm"]), head)


def draft_loss(
    x: Tensor, pre: Tensor, teacher_x: Tensor, teacher_pre: Tensor, top: Params, backbone: Params,
    prev: Tensor, target: Tensor, weight: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Loss, hits [A·5] (draft argmax = backbone argmax) and right confidences [A·5]."""
    h, z = draft_logits(x, pre, top, backbone["head"])
    me = F.embedding(prev, top["m_embed"]).to(h.dtype)
    z = (z + product(me, top["m_head"])).float()
    t = head_logits(teacher_x, teacher_pre, backbone).detach().float()
    log = torch.log_softmax(z, -1)
    soft = -(torch.softmax(t, -1) * log).sum(-1)
    data = -log.gather(1, target[:, None])[:, 0]
    best = t.gather(1, z.argmax(-1, keepdim=True))[:, 0] >= t.amax(-1)
    conf = product(torch.cat([h, me], -1), top["conf"]).float()[:, 0]
    sure = F.binary_cross_entropy_with_logits(conf, best.float(), reduction="none")
    loss = ((0.9 * soft + 0.1 * data + 0.1 * sure) * weight).sum() / weight.sum()
    return loss, best, (conf > 0) == best


class DraftHead:
    """Parameters of `mtp.*` and the passes over them."""

    def __init__(self, net: Backbone, seed: int = 1) -> None:
        s = net.s
        gen = torch.Generator().manual_seed(seed)

        def normal(r: int, c: int, std: float) -> Tensor:
            return torch.randn(r, c, generator=gen) * std

        top = {
            "main_proj": normal(s.hidden, 3 * s.hidden, (3 * s.hidden) ** -0.5),
            "main_norm": torch.ones(s.hidden), "norm": torch.ones(s.hidden),
            "m_embed": normal(s.vocab, s.markov_rank, 0.1),
            "m_head": normal(s.vocab, s.markov_rank, 0.02),
            "conf": torch.zeros(1, s.hidden + s.markov_rank),
        }  # fmt: skip
        blocks = [block_params(s, 2 * i, s.draft_experts, gen) for i in range(s.draft_layers)]
        self.net = net
        self.top = {k: v.to(net.device) for k, v in top.items()}
        self.blocks = [{k: v.to(net.device) for k, v in p.items()} for p in blocks]
        self.route = Routing(s.draft_top, s.route_scale, s.limit)
        self.loads: list[Tensor] = []
        wrap: Callable = (lambda f: f) if net.device == "cpu" else self._compiled
        self.attention_in, self.block_out = wrap(attention_in), wrap(block_out)
        self.ring_keys, self.block_attend = wrap(ring_keys), wrap(block_attend)
        self.embed, self.loss, self.logits = wrap(embed), wrap(draft_loss), draft_logits

    @staticmethod
    def _compiled(f: Callable) -> Callable:
        return torch.compile(f, dynamic=False)

    def rows(
        self, tokens: Tensor, taps: list[Tensor], at: Tensor, q: Rounding, first: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Stream and pre-mix of the block rows [A·5, ...] of anchors at [A] (flat positions).

        tokens [B, T]; first [A] is the token at p+1; taps are the backbone's three tap rows.
        """
        net, s = self.net, self.net.s
        b, t = tokens.shape
        cos, sin = net.table(b, t, 0)
        rings = self.ring_keys(torch.cat(taps, -1), self.top, self.blocks, cos, sin, q)
        back = torch.arange(s.window - 1, -1, -1, device=at.device)
        place = at % t
        seen = place[:, None] >= back
        where = (at[:, None] - back).clamp_min(0)
        ahead = (place[:, None] + 1 + torch.arange(s.draft_block, device=at.device)).flatten()
        angle = ahead[:, None].float() * torch.as_tensor(s.frequencies(False), device=at.device)
        cos, sin = angle.cos(), angle.sin()
        ids = torch.full((at.shape[0], s.draft_block), s.noise, device=at.device)
        ids[:, 0] = first
        x = self.embed(ids.flatten(), net.top["embed"], net.dtype, s.copies)
        pre = torch.zeros(x.shape[0], s.copies, device=at.device)
        pre[:, 0] = 1
        pre.requires_grad_(torch.is_grad_enabled())
        self.loads = []
        for p, ring in zip(self.blocks, rings, strict=True):
            a = self.attention_in(x, pre, part(p, IN_NAMES), cos, sin, q)
            o = self.block_attend(a.query, a.key, ring[where], seen, p["sink"])
            x, pre, load = self.block_out(o, x, a, part(p, OUT_NAMES), cos, sin, self.route, q)
            self.loads.append(load)
        return x, pre

    def lesson(
        self, tokens: Tensor, trace: Trace, at: Tensor, q: Rounding
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Training loss at anchors `at`, hits [A, 5], right confidences [A, 5]."""
        n = self.net.s.draft_block
        flat = tokens.flatten()
        x, pre = self.rows(tokens, trace.taps, at, q, flat[at + 1])
        after = (at[:, None] + 1 + torch.arange(n, device=at.device)).flatten()
        weight = torch.tensor(POSITION_WEIGHTS, device=at.device).repeat(at.shape[0])
        loss, hit, sure = self.loss(
            x, pre, trace.x[after], trace.pre[after], self.top,
            part(self.net.top, HEAD_NAMES),
            flat[after], flat[after + 1], weight,
        )  # fmt: skip
        return loss, hit.unflatten(0, (-1, n)), sure.unflatten(0, (-1, n))

    @torch.no_grad()
    def greedy(
        self, tokens: Tensor, taps: list[Tensor], at: Tensor, q: Rounding, first: Tensor
    ) -> tuple[Tensor, Tensor]:
        """6.2 steps 4-6: drafts [A, 5] and confidence logits [A, 5]."""
        n = self.net.s.draft_block
        x, pre = self.rows(tokens, taps, at, q, first)
        h, z = self.logits(x, pre, self.top, self.net.top["head"])
        h, z = h.unflatten(0, (-1, n)), z.float().unflatten(0, (-1, n))
        prev, drafts, conf = first, [], []
        for i in range(n):
            me = F.embedding(prev, self.top["m_embed"]).to(h.dtype)
            zi = z[:, i] + product(me, self.top["m_head"]).float()
            conf.append(product(torch.cat([h[:, i], me], -1), self.top["conf"]).float()[:, 0])
            prev = zi.argmax(-1)
            drafts.append(prev)
        return torch.stack(drafts, 1), torch.stack(conf, 1)
