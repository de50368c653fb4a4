"""The three numerics of the model (design D2): what is rounded, and where.

Every other file of this room writes the formulas of the specification and marks each place where
the specification rounds with one of the methods below. `golden` rounds nowhere; `kv` rounds what
is kept (window keys, main entries, index keys) to the released byte formats; `faithful` also
rounds every activation (section 5) and to bf16 wherever section 3 says so. Arithmetic between
two roundings is fp32 in all three.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from torch import Tensor, bfloat16
from torch.nn import functional as F

from deodar.errors import ConfigError
from deodar.model import quant

NumericsName = Literal["golden", "kv", "faithful"]


@dataclass(frozen=True, slots=True)
class Numerics:
    """Rounding switches. All methods take and return fp32 tensors of the same shape."""

    name: NumericsName
    rounds_stored: bool
    rounds_activations: bool

    def bf16(self, x: Tensor) -> Tensor:
        """Where section 3 writes bf16( )."""
        return x.to(bfloat16).float() if self.rounds_activations else x

    def linear8(self, x: Tensor, weight: Tensor) -> Tensor:
        """x [n, in] times an fp8 or fp4 matrix [out, in]; input rounded by 5.1."""
        if self.rounds_activations:
            x = quant.fp8_round(x)
        return self.bf16(F.linear(x, weight))

    def linear16(self, x: Tensor, weight: Tensor) -> Tensor:
        """x [n, in] times a bf16 matrix [out, in]."""
        return self.bf16(F.linear(x, weight))

    def window_key(self, x: Tensor) -> Tensor:
        """A window key as it is read back (5.2)."""
        if not self.rounds_stored:
            return x
        return quant.fp8_round(x)

    def main_entry(self, x: Tensor) -> Tensor:
        """A compressed entry as it is read back (5.4)."""
        if not self.rounds_stored:
            return x
        return quant.entry_round(x)

    def index_key(self, x: Tensor) -> Tensor:
        """An index key as it is read back (5.3)."""
        if not self.rounds_stored:
            return x
        return quant.index_round(x)

    def index_query(self, x: Tensor) -> Tensor:
        """An index query: rounded like its keys (5.3), but not stored, so only in `faithful`."""
        return self.index_key(x) if self.rounds_activations else x


_BY_NAME: dict[str, Numerics] = {
    "golden": Numerics("golden", rounds_stored=False, rounds_activations=False),
    "kv": Numerics("kv", rounds_stored=True, rounds_activations=False),
    "faithful": Numerics("faithful", rounds_stored=True, rounds_activations=True),
}


def numerics(name: str) -> Numerics:
    """The numerics called `name`; ConfigError for any other word."""
    if name not in _BY_NAME:
        known = ", ".join(get_args(NumericsName))
        raise ConfigError(f"numerics is {name!r}, must be one of {known}")
    return _BY_NAME[name]
