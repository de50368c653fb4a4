"""An engine over a made-up model: the next token is the last one plus 1. No compiled kernels.

As a script it is an engine process: python toy_engine.py [--load-s S] [--fail TEXT] --fd N
"""

import argparse
import signal
import socket
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # as a script
from small_cache import make_scheduler

from deodar.engine.hooks import Hooks
from deodar.engine.loop import Engine
from deodar.engine.process import serve_engine
from deodar.errors import CheckpointError
from deodar.types import SampledToken

VOCAB = 300
EOS = 1


class Counting:
    """Logits 40 for the successor of the last token, 0 elsewhere."""

    def __init__(self, step_s=0.0):
        self.step_s = step_s

    def run(self, plan):
        time.sleep(self.step_s)
        last = [c.token_ids[-1] for c in plan.chunks if c.sampling is not None]
        logits = np.zeros((len(last), VOCAB), np.float32)
        for row, token in enumerate(last):
            logits[row, (token + 1) % VOCAB] = 40.0
        return logits


class ToyEngine(Engine):
    """Draws the largest logit in NumPy, so that no kernel is compiled."""

    def warm_up(self):
        pass


def toy_engine(*, slots=4, context=200, hooks=True, step_s=0.0):
    scheduler = make_scheduler(
        slots=slots, context=context, step_tokens=32, vocab_size=VOCAB, eos_token_id=EOS
    )
    return ToyEngine(Counting(step_s), scheduler, Hooks(VOCAB, EOS) if hooks else None)


def draw_largest(row, params, seed, index):
    token = int(np.argmax(row))
    shifted = row.astype(np.float64) - row.max()
    return SampledToken(token, float(shifted[token] - np.log(np.exp(shifted).sum())))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fd", type=int, required=True)
    parser.add_argument("--load-s", type=float, default=0.0)
    parser.add_argument("--step-s", type=float, default=0.002)
    parser.add_argument("--fail")
    args = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def open_engine():
        time.sleep(args.load_s)
        if args.fail:
            raise CheckpointError(args.fail)
        return toy_engine(step_s=args.step_s)

    return serve_engine(socket.socket(fileno=args.fd), open_engine)


if __name__ == "__main__":
    import deodar.engine.loop

    deodar.engine.loop.sample = draw_largest
    sys.exit(main())
