"""What `serve` and `chat` need of a model: its engine, tokenizer, context and defaults."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from deodar.checkpoint.loader import read_config, read_generation_config
from deodar.checkpoint.locate import resolve_model
from deodar.engine.client import EngineClient
from deodar.engine.defaults import sampling_defaults
from deodar.errors import ConfigError, TokenizerError
from deodar.text.tokenizer import Tokenizer
from deodar.types import SamplingParams


class RunningEngine(EngineClient, Protocol):
    """An engine that was started here."""

    def close(self) -> None:
        """Stop it; running requests end with reason "abort"."""
        ...


Start = Callable[[Path, int], RunningEngine]


@dataclass(frozen=True, slots=True)
class OpenModel:
    """An engine that runs, with what belongs to it. Whoever opened it closes the engine."""

    engine: RunningEngine
    tokenizer: Tokenizer
    context: int
    sampling: SamplingParams


def open_model(name: str, context: int | None, start: Start | None = None) -> OpenModel:
    """Load a model by name or folder and start its engine; DeodarError if it cannot serve.

    context: tokens of prompt and answer together; None is what the model was made for. start: makes
    the engine of a folder and a context; the default runs it in a thread of this process.
    """
    folder = resolve_model(name)
    config = read_config(folder)
    tokenizer = Tokenizer.from_folder(folder)
    if tokenizer.vocab_size > config.vocab_size:
        raise TokenizerError(
            f"tokenizer.json has {tokenizer.vocab_size} ids, the model {config.vocab_size}"
        )
    limit = config.max_position_embeddings
    if context is not None and not 1 < context <= limit:
        raise ConfigError(f"--context is {context}, it must be between 2 and {limit}")
    sampling = sampling_defaults(read_generation_config(folder), config.eos_token_id)
    engine = (start or start_thread)(folder, context or limit)
    return OpenModel(engine, tokenizer, context or limit, sampling)


def start_thread(folder: Path, context: int) -> RunningEngine:
    """An engine in a thread of this process."""
    from deodar.engine.client import InProcessClient
    from deodar.kernels.cpu import jit

    if not jit.kept() and sys.stderr.isatty():
        print("compiling kernels for this processor, once: about 20 s", file=sys.stderr)
    return InProcessClient.open(folder, context=context)


def start_process(folder: Path, context: int) -> RunningEngine:
    """An engine in a supervised process of its own."""
    from deodar.engine.remote import RemoteClient

    return RemoteClient.open(folder, context=context)


def start_process_with_hooks(folder: Path, context: int) -> RunningEngine:
    """The same with test hooks."""
    from deodar.engine.remote import RemoteClient

    return RemoteClient.open(folder, context=context, test_hooks=True)
