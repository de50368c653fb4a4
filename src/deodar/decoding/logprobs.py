"""The likeliest tokens of a row with their log-probabilities. Reported only, never drawn from.

Called by the engine for requests that ask for them (spec api 3.2).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from deodar.types import SampledToken, TopLogprobs


def top_logprobs(logits: NDArray[np.float32], drawn: SampledToken, count: int) -> TopLogprobs:
    """The `count` likeliest ids of raw logits [vocab], best first, lowest id on ties.

    The normaliser is that of the drawn token, so both report the same number for the same id.
    """
    count = min(count, logits.size)
    threshold = np.partition(logits, logits.size - count)[logits.size - count]
    ids = np.flatnonzero(logits >= threshold)
    ids = ids[np.argsort(-logits[ids], kind="stable")][:count]
    base = float(logits[drawn.token_id])
    return tuple((int(i), drawn.logprob + (float(logits[i]) - base)) for i in ids)
