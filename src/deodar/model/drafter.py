"""The draft head alone, for replaying drafts along a finished text (`deodar eval`).

What must hold: proposals depend on the taps only; the backbone's arithmetic is not touched.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from deodar.checkpoint.loader import Checkpoint
from deodar.model.reference import Reference


class Drafter:
    """Greedy proposals from taps that another implementation of the backbone recorded."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._reference = Reference(checkpoint, "kv")

    def propose(self, taps: npt.NDArray[np.float32], position: int, next_id: int) -> list[int]:
        """Drafts of positions position + 2, ... after `next_id` at position + 1 (spec model 6.2).

        taps: [m, taps * hidden] of the window that ends at `position`, oldest first.
        """
        rows = torch.from_numpy(np.ascontiguousarray(taps))
        tokens: list[int] = self._reference.draft_at(rows, position, next_id).tokens.tolist()
        return tokens
