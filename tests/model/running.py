"""Helpers of the model tests: the prompt of model.md 8.2, and running it in pieces."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from deodar.model.reference import ForwardResult, Reference
from deodar.model.state import State

PROMPT = [
    443, 143, 348, 397, 231, 50, 420, 428, 372, 492, 256, 136, 153, 301, 244, 101, 354, 145, 105,
    59, 505, 180, 97, 148, 265, 341, 340, 379, 75, 214, 372, 338, 145, 126, 139, 350, 59, 24, 141,
    375,
]  # fmt: skip
TOLERANCE = 2e-4


def close(values: Tensor, expected: Sequence[float], tolerance: float = TOLERANCE) -> None:
    torch.testing.assert_close(
        values, torch.tensor(expected, dtype=torch.float32), atol=tolerance, rtol=0
    )


def pieces(total: int, sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Cut `total` into the sizes given, the last one repeated: [(start, stop), ...]."""
    cuts, start, queue = [], 0, list(sizes)
    while start < total:
        size = queue.pop(0) if len(queue) > 1 else queue[0]
        cuts.append((start, min(start + size, total)))
        start += size
    return cuts


def run(
    model: Reference,
    ids: Sequence[int],
    sizes: Sequence[int] = (10_000,),
    image_mask: Sequence[bool] | None = None,
) -> tuple[list[ForwardResult], Tensor, State]:
    """Results per piece, logits of all rows, and the state at the end."""
    state = model.new_state()
    results = [
        model.forward(ids[a:b], state, None if image_mask is None else image_mask[a:b])
        for a, b in pieces(len(ids), sizes)
    ]
    return results, torch.cat([r.logits for r in results]), state


def greedy(model: Reference, state: State, token: int, steps: int) -> list[int]:
    """`token` and the greedy tokens after it, fed one at a time."""
    tokens = [token]
    for _ in range(steps):
        tokens.append(int(model.forward([tokens[-1]], state).logits[-1].argmax()))
    return tokens
