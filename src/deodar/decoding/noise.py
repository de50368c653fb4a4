"""The noise of sampling: a pure function of seed, choice, output index and token id (design D4).

Philox4x32-10 makes 32 bits, an exactly specified logarithm makes them a Gumbel number. Only IEEE
binary64 additions, multiplications and divisions in a fixed order are used, so every machine gets
the same bits. The definition with test vectors is in docs/sampling.md; whoever changes a number
here changes every seeded answer.
"""

from __future__ import annotations

import numpy as np

from deodar.kernels.cpu.elementary import high_word, with_exponent
from deodar.kernels.cpu.jit import entry, part

_LOW = np.uint64(0xFFFFFFFF)
_WORD = np.uint64(32)
_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_LN2_HIGH = float.fromhex("0x1.62e42fee00000p-1")
_LN2_LOW = float.fromhex("0x1.a39ef35793c76p-33")
_SQRT2 = float.fromhex("0x1.6a09e667f3bcdp+0")


@part
def philox(c0, c1, c2, c3, k0, k1):
    """Philox4x32-10: four uint32 counters and two uint32 keys (as uint64) to four uint32."""
    for turn in range(10):
        if turn > 0:
            k0 = (k0 + _W0) & _LOW
            k1 = (k1 + _W1) & _LOW
        first, second = _M0 * c0, _M1 * c2
        c0, c2 = (second >> _WORD) ^ c1 ^ k0, (first >> _WORD) ^ c3 ^ k1
        c1, c3 = second & _LOW, first & _LOW
    return c0, c1, c2, c3


@part
def ln(x):
    """Natural logarithm of a positive normal float64: x = m 2^e with sqrt(1/2) <= m < sqrt(2).

    ln x = e ln2_high + (e ln2_low + 2 s P(s^2)), s = (m - 1) / (m + 1), P = 1 + z/3 + ... + z^10/21
    by Horner. Within 2 units in the last place.
    """
    e = (high_word(x) >> 20) - 1023
    m = with_exponent(x, 1023)
    if m >= _SQRT2:
        m = m * 0.5
        e += 1
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    p = 1.0 / 21.0
    for odd in range(19, 0, -2):
        p = p * z + 1.0 / odd
    return e * _LN2_HIGH + (e * _LN2_LOW + 2.0 * s * p)


@part
def gumbel(bits):
    """-ln(-ln((bits + 1/2) / 2^32)), float64, of uint32 bits (as uint64)."""
    return -ln(-ln((np.float64(bits) + 0.5) * 2.0**-32))


@part
def noise_bits(seed, choice, index, block):
    """The 32-bit words of tokens 4 block .. 4 block + 3; all arguments uint64.

    key = low and high half of the seed; counter = (block, output index, choice, 0).
    """
    return philox(block, index, choice, np.uint64(0), seed & _LOW, seed >> _WORD)


@entry
def gumbel_rows(seed, choice, index, count):
    """Gumbel numbers of token ids 0 .. count - 1, float64 [count]; for tests and drafts."""
    out = np.empty(count, np.float64)
    for block in range((count + 3) // 4):
        words = noise_bits(np.uint64(seed), np.uint64(choice), np.uint64(index), np.uint64(block))
        for i in range(min(4, count - 4 * block)):
            out[4 * block + i] = gumbel(words[i])
    return out
