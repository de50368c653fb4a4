"""Counts the torch operations of one decode step of the reference, layer by layer.

Called by `deodar bench decode`, which compares with the reference and owes the reader this number:
a reference slowed by thousands of small operations would flatter whatever it is compared with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from deodar.model.block import Pass
from deodar.model.reference import Reference
from deodar.model.state import State


@dataclass(frozen=True, slots=True)
class OperationCount:
    """Torch operations as dispatched, views included, composite ones (linear, einsum) once.

    per_layer: [layers]. rest: embedding, head and what the layers share.
    """

    per_layer: tuple[int, ...]
    rest: int

    @property
    def mean(self) -> float:
        return sum(self.per_layer) / len(self.per_layer)

    @property
    def most(self) -> int:
        return max(self.per_layer)


class _Counter(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


class _Counted(Reference):
    """A reference that shares another one's weights and notes the counter around each layer."""

    def __init__(self, model: Reference, counter: _Counter) -> None:
        self.__dict__.update(model.__dict__)
        self.counter = counter
        self.per_layer: list[int] = []

    def _layer(
        self, layer: int, stream: Tensor, pre: Tensor, call: Pass, state: State
    ) -> tuple[Tensor, Tensor]:
        before = self.counter.count
        result = super()._layer(layer, stream, pre, call, state)
        self.per_layer.append(self.counter.count - before)
        return result


def count_operations(model: Reference, prompt: Sequence[int], token: int) -> OperationCount:
    """Operations of the step that runs `token` after `prompt`."""
    state = model.new_state()
    model.forward(prompt, state)
    counter = _Counter()
    counted = _Counted(model, counter)
    with counter:
        counted.forward([token], state)
    return OperationCount(tuple(counted.per_layer), counter.count - sum(counted.per_layer))
