"""Runs the `deodar` command with a model whose engine replays one answer; started by tests.

python fake_model.py ANSWER serve --port 0
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

from fake_engine import FakeEngine, steps_of, token_ids
from small_tokenizer import small_definition

import deodar.cli.batch
import deodar.cli.chat
import deodar.cli.serve
from deodar.cli.main import main
from deodar.cli.open_model import OpenModel
from deodar.text.tokenizer import Tokenizer
from deodar.types import SamplingParams


class ClosingEngine(FakeEngine):
    def close(self):
        print("engine closed", file=sys.stderr, flush=True)


def open_fake(name, options, start=None):
    tokenizer = Tokenizer(small_definition())
    ids = token_ids(tokenizer, sys.argv[1])
    engine = ClosingEngine(tokenizer.eos_id, lambda request: steps_of(ids))
    engine.delay_s = 0.01
    return OpenModel(engine, tokenizer, options.context or 2000, SamplingParams())


deodar.cli.serve.open_model = open_fake
deodar.cli.batch.open_model = open_fake
deodar.cli.chat.open_model = open_fake
sys.exit(main(sys.argv[2:]))
