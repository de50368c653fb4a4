"""The oracle: the whole model in plain torch, any chunking, three numerics (3, 6; design D2).

Called by `deodar logits` and `deodar draft`, by evaluations, and by tests of everything faster.
Formulas live in the files beside this one; here is the order in which they run (3.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from deodar.checkpoint.engram import DEAD, hash_rows
from deodar.checkpoint.loader import Checkpoint
from deodar.errors import RequestError
from deodar.model import hyper, weights
from deodar.model.block import Pass, block, layer_attention
from deodar.model.draft import Draft, draft
from deodar.model.engram import engram
from deodar.model.layers import rms_norm
from deodar.model.numerics import NumericsName, numerics
from deodar.model.rope import RopeTables
from deodar.model.state import State, new_state

ROWS_AT_ONCE = 512
"""Longer inputs run in pieces of this many tokens, so that memory grows with the length only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardResult:
    """What one call computed for its n tokens.

    logits: fp32 [n, vocab]. chosen: per index source int64 [n, index_topk], ascending entry ids,
    padded with -1. candidates: int64 [n, candidate_topk_blocks] block ids, padded with -1, or
    None without a candidate source. taps: fp32 [n, taps * hidden]. engram_rows: per Engram layer
    int64 [n, columns]. magnitudes: mean |X| after each layer, fp32 [layers, n].
    """

    logits: Tensor
    chosen: dict[int, Tensor]
    candidates: Tensor | None
    taps: Tensor
    engram_rows: dict[int, np.ndarray]
    magnitudes: Tensor


def joined(results: Sequence[ForwardResult]) -> ForwardResult:
    """One result of consecutive calls on the same sequence."""
    candidates = [r.candidates for r in results if r.candidates is not None]
    first = results[0]
    return ForwardResult(
        logits=torch.cat([r.logits for r in results]),
        chosen={layer: torch.cat([r.chosen[layer] for r in results]) for layer in first.chosen},
        candidates=torch.cat(candidates) if candidates else None,
        taps=torch.cat([r.taps for r in results]),
        engram_rows={
            layer: np.concatenate([r.engram_rows[layer] for r in results])
            for layer in first.engram_rows
        },
        magnitudes=torch.cat([r.magnitudes for r in results], dim=1),
    )


class Reference:
    """A checkpoint's model, all weights dense in fp32; Engram tables stay on disk."""

    def __init__(self, checkpoint: Checkpoint, mode: NumericsName = "kv") -> None:
        config = checkpoint.config
        self.checkpoint = checkpoint
        self.config = config
        self.numerics = numerics(mode)
        self.rope = RopeTables(config)
        self.token_map = checkpoint.token_map()
        self.embed = weights.tensor(checkpoint, "embed.weight")
        self.head = weights.tensor(checkpoint, "head.weight")
        self.norm = weights.tensor(checkpoint, "norm.weight")
        self.blocks = [
            weights.backbone_block(checkpoint, layer) for layer in range(config.num_hidden_layers)
        ]
        self.engrams = {
            layer: weights.engram_weights(checkpoint, layer) for layer in config.engram_layer_ids
        }
        self.draft_weights = (
            weights.draft_weights(checkpoint, self.embed, self.head)
            if config.num_nextn_predict_layers
            else None
        )

    def new_state(self) -> State:
        """State of a sequence that has no token yet."""
        return new_state(self.config)

    @torch.inference_mode()
    def forward(
        self,
        ids: Sequence[int],
        state: State,
        image_mask: Sequence[bool] | None = None,
        *,
        hide_memory: bool = False,
    ) -> ForwardResult:
        """Run the next len(ids) tokens of a sequence and move `state` past them.

        image_mask: which tokens lie in an image span (None: none); their embeddings are those of
        their ids. hide_memory: attend to the window only (the memory is still written), to
        measure what the memory is worth. RequestError if an id is outside the vocabulary, if ids
        is empty or longer than the context, or if the mask has another length; `state` is then as
        it was.
        """
        self._check(ids, image_mask, state.length)
        results = []
        for start in range(0, len(ids), ROWS_AT_ONCE):
            rows = slice(start, start + ROWS_AT_ONCE)
            mask = None if image_mask is None else image_mask[rows]
            results.append(self._forward_rows(ids[rows], state, mask, hide_memory))
        return results[0] if len(results) == 1 else joined(results)

    def _forward_rows(
        self,
        ids: Sequence[int],
        state: State,
        image_mask: Sequence[bool] | None,
        hide_memory: bool,
    ) -> ForwardResult:
        config, numbers = self.config, self.numerics
        call = self._begin(ids, state, image_mask, hide_memory)
        stream = self.embed[torch.tensor(ids)][:, None, :].repeat(1, config.hc_mult, 1)
        pre = torch.zeros(len(ids), config.hc_mult)
        pre[:, 0] = 1.0
        magnitudes = []
        for layer in range(config.num_hidden_layers):
            stream, pre = self._layer(layer, stream, pre, call, state)
            magnitudes.append(stream.abs().mean(dim=(1, 2)))
        h = hyper.read(stream, pre, numbers)
        h = rms_norm(h, self.norm, config.rms_norm_eps, numbers)
        taps = torch.cat([stream.new_zeros(len(ids), 0), *call.taps], dim=-1)
        self._advance(state, call.compressed, taps)
        return ForwardResult(
            logits=F.linear(h, self.head),
            chosen=call.chosen,
            candidates=call.candidates,
            taps=taps,
            engram_rows=call.engram_rows,
            magnitudes=torch.stack(magnitudes),
        )

    @torch.inference_mode()
    def draft(self, state: State, next_id: int) -> Draft:
        """Greedy proposals after `next_id`, the token chosen at the state's last position (6.2).

        Changes nothing in `state`. RequestError without a processed token or a draft head.
        """
        if state.length == 0:
            raise RequestError("draft needs at least 1 processed token, has 0")
        return self.draft_at(state.taps, state.length - 1, next_id)

    @torch.inference_mode()
    def draft_at(self, taps: Tensor, position: int, next_id: int) -> Draft:
        """The same from taps [m, taps * hidden] of `position` and the m - 1 positions before.

        Rows older than the window are not seen. With the taps of a whole forward call this
        replays drafting along a text (`deodar eval`).
        """
        if self.draft_weights is None:
            raise RequestError("this checkpoint has no draft head (num_nextn_predict_layers is 0)")
        self._check([next_id], None, position + 1)
        return draft(
            taps[-self.config.sliding_window :],
            position,
            next_id,
            self.draft_weights,
            self.rope,
            self.config,
            self.numerics,
        )

    def _check(self, ids: Sequence[int], image_mask: Sequence[bool] | None, start: int) -> None:
        vocab, limit = self.config.vocab_size, self.config.max_position_embeddings
        if not len(ids):
            raise RequestError("ids is empty, must hold at least 1 token", param="ids")
        for place, token in enumerate(ids):
            if not 0 <= token < vocab:
                raise RequestError(
                    f"ids[{place}] is {token}, must be from 0 to {vocab - 1}", param="ids"
                )
        if start + len(ids) > limit:
            raise RequestError(
                f"ids reach position {start + len(ids) - 1}, must stay below {limit}", param="ids"
            )
        if image_mask is not None and len(image_mask) != len(ids):
            raise RequestError(
                f"image_mask has {len(image_mask)} values, must have one per token ({len(ids)})",
                param="image_mask",
            )

    def _begin(
        self,
        ids: Sequence[int],
        state: State,
        image_mask: Sequence[bool] | None,
        hide_memory: bool,
    ) -> Pass:
        positions = torch.arange(state.length, state.length + len(ids))
        flagged = image_mask is not None and any(image_mask)
        compressed = self.token_map[np.asarray(ids, dtype=np.int64)]
        if image_mask is not None:
            compressed = np.where(image_mask, DEAD, compressed)
        return Pass(
            config=self.config,
            numerics=self.numerics,
            rope=self.rope,
            positions=positions,
            compressed=np.concatenate([state.history, compressed]),
            image=torch.tensor(image_mask, dtype=torch.bool) if flagged else None,
            hide_memory=hide_memory,
            plain=self.rope.at(positions, compressed=False),
            yarn=self.rope.at(positions, compressed=True),
            in_window=positions[:, None] >= torch.arange(self.config.sliding_window - 1, -1, -1),
        )

    def _layer(
        self, layer: int, stream: Tensor, pre: Tensor, call: Pass, state: State
    ) -> tuple[Tensor, Tensor]:
        """Engram, tap and block of one layer, in this order (3.2)."""
        config, numbers = self.config, self.numerics
        if layer in self.engrams:
            stream = self._engram(stream, layer, call)
        if layer in config.dspark_target_layer_ids:
            call.taps.append(numbers.bf16(stream.mean(dim=1)))
        w = self.blocks[layer]

        def attend(x: Tensor) -> Tensor:
            return layer_attention(x, layer, w, call, state)

        return block(stream, pre, w, attend, call.image, config, numbers)

    def _engram(self, stream: Tensor, layer: int, call: Pass) -> Tensor:
        rows = hash_rows(self.config, layer, call.compressed)
        call.engram_rows[layer] = rows
        fetched = torch.from_numpy(self.checkpoint.engram_rows(layer, rows)).flatten(1)
        weights = self.engrams[layer]
        return engram(stream, fetched, call.image, weights, self.config, self.numerics)

    def _advance(self, state: State, compressed: np.ndarray, taps: Tensor) -> None:
        history = len(state.history)
        state.length += taps.shape[0]
        state.history = compressed[len(compressed) - history :]
        state.taps = torch.cat([state.taps, taps])[-self.config.sliding_window :]
