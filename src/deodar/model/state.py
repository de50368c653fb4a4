"""What one sequence keeps between chunks (4.3, 4.4, 4.5).

Owned by the caller of `Reference.forward`, changed only there. What must hold: tensors are
replaced, never written in place, so `copy()` is a snapshot to which a caller may return.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from deodar.checkpoint.engram import DEAD
from deodar.config import ModelConfig
from deodar.model.compressor import Unpaired


@dataclass(frozen=True, slots=True)
class Memory:
    """Entries of one KV source: entries [m, head_dim], index_keys [m, index_head_dim].

    unpaired: (a, g) of a last token whose partner has not come yet (ratio 2).
    """

    entries: Tensor
    index_keys: Tensor
    unpaired: Unpaired | None = None


@dataclass(slots=True, kw_only=True)
class State:
    """Everything a sequence needs to go on at position `length`.

    windows: per layer the keys of the last window - 1 positions [window - 1, head_dim], zeros
    where the sequence is shorter. history: compressed ids before `length` (n-gram size - 1 of
    them, oldest first; DEAD marks an image position or the time before the start). taps: the last
    window rows of 3.2 at most, for the draft head.
    """

    length: int
    windows: dict[int, Tensor]
    memories: dict[int, Memory]
    history: np.ndarray
    taps: Tensor

    def copy(self) -> State:
        """A snapshot; costs no tensor copies."""
        return replace(self, windows=dict(self.windows), memories=dict(self.memories))


def new_state(config: ModelConfig) -> State:
    """The state before the first token."""
    empty = torch.zeros(config.sliding_window - 1, config.head_dim)
    return State(
        length=0,
        windows=dict.fromkeys(range(config.num_hidden_layers), empty),
        memories={
            layer: Memory(torch.zeros(0, config.head_dim), torch.zeros(0, config.index_head_dim))
            for layer in config.kv_source_layer_ids
        },
        history=np.full(config.engram_max_ngram_size - 1, DEAD, dtype=np.int64),
        taps=torch.zeros(0, len(config.dspark_target_layer_ids) * config.hidden_size),
    )
