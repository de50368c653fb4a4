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
from deodar.engine.options import EngineOptions, resolve
from deodar.errors import TokenizerError
from deodar.text.tokenizer import Tokenizer
from deodar.types import SamplingParams


class RunningEngine(EngineClient, Protocol):
    """An engine that was started here."""

    def close(self) -> None:
        """Stop it; running requests end with reason "abort"."""
        ...


Start = Callable[[Path, EngineOptions], RunningEngine]


@dataclass(frozen=True, slots=True)
class OpenModel:
    """An engine that runs, with what belongs to it. Whoever opened it closes the engine."""

    engine: RunningEngine
    tokenizer: Tokenizer
    context: int
    sampling: SamplingParams


def open_model(name: str, options: EngineOptions, start: Start | None = None) -> OpenModel:
    """Load a model by name or folder and start its engine; DeodarError if it cannot serve.

    start: makes the engine of a folder and options; the default runs it in a thread here.
    """
    folder = resolve_model(name)
    config = read_config(folder)
    tokenizer = Tokenizer.from_folder(folder)
    if tokenizer.vocab_size > config.vocab_size:
        raise TokenizerError(
            f"tokenizer.json has {tokenizer.vocab_size} ids, the model {config.vocab_size}"
        )
    settings = resolve(config, options)
    sampling = sampling_defaults(read_generation_config(folder), config.eos_token_id)
    engine = (start or start_thread)(folder, options)
    return OpenModel(engine, tokenizer, settings.context, sampling)


def start_thread(folder: Path, options: EngineOptions) -> RunningEngine:
    """An engine in a thread of this process."""
    from deodar.engine.client import InProcessClient
    from deodar.kernels.cpu import jit

    if not jit.kept() and sys.stderr.isatty():
        print("compiling kernels for this processor, once: about 20 s", file=sys.stderr)
    return InProcessClient.open(folder, options)


def start_process(folder: Path, options: EngineOptions) -> RunningEngine:
    """An engine in a supervised process of its own."""
    from deodar.engine.remote import RemoteClient

    return RemoteClient.open(folder, options)


def start_process_with_hooks(folder: Path, options: EngineOptions) -> RunningEngine:
    """The same with test hooks."""
    from deodar.engine.remote import RemoteClient

    return RemoteClient.open(folder, options, test_hooks=True)
