"""Exact top-k with a total order: larger score first, lowest id on ties; ids come out ascending.

Used for compressed entries, candidate blocks and experts. A score of -inf is never chosen; NaN is
the best of all, so that whatever made it shows in the answer.
"""

from __future__ import annotations

import numpy as np

from deodar.kernels.cpu.elementary import F32, as_int, keep_apart
from deodar.kernels.cpu.jit import part

_ZERO = F32(0.0)
_NOTHING = np.uint32(0x007FFFFF)  # the key of -inf
_EVERYTHING = np.uint32(0xFFFFFFFF)


@part
def order_key(score):
    """A uint32 that orders like the score; -0 counts as +0."""
    if score != score:
        return _EVERYTHING
    bits = np.uint32(as_int(score + _ZERO))
    if bits & np.uint32(0x80000000):
        return np.uint32(~bits)
    return np.uint32(bits | np.uint32(0x80000000))


@part
def select_top(scores, keys, k, ids):
    """Write the ids of the k best of `scores` to `ids`, ascending; return how many there are.

    scores float32 [n]; keys uint32 [>= n], overwritten; ids int32 [>= min(k, n)].
    """
    keep_apart()
    n = scores.size
    usable = 0
    for i in range(n):
        keys[i] = order_key(scores[i])
        usable += keys[i] > _NOTHING
    if usable <= k:
        threshold, equal = _NOTHING, 0
    else:
        threshold, equal = _kth_largest(keys, n, k)
    count = 0
    for i in range(n):
        if keys[i] > threshold:
            ids[count] = i
            count += 1
        elif equal > 0 and keys[i] == threshold:
            ids[count] = i
            count += 1
            equal -= 1
    return count


@part
def _kth_largest(keys, n, k):
    """The k-th largest key, and how many keys equal to it belong to the k best."""
    keep_apart()
    counts = np.zeros(2048, np.int64)
    prefix, known, left = np.uint32(0), np.uint32(0), k
    for shift, bits in ((21, 11), (10, 11), (0, 10)):
        counts[:] = 0
        digit = np.uint32((1 << bits) - 1)
        for i in range(n):
            if (keys[i] & known) == prefix:
                counts[(keys[i] >> np.uint32(shift)) & digit] += 1
        at = np.int64(digit)
        while counts[at] < left:
            left -= counts[at]
            at -= 1
        prefix = np.uint32(prefix | np.uint32(at << shift))
        known = np.uint32(known | np.uint32(np.int64(digit) << shift))
    return prefix, left
