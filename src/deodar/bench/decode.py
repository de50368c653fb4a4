"""`deodar bench decode`: the compiled model against the plain reference, in one run.

Both run the same checkpoint, the same prompt and the same tokens on one thread, in turns, so that
other load on the machine hits both. Beside the ratio stands the floor: the bytes that one step
must read, over the reading speed measured in the same minute.
"""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch

from deodar.bench.reference_ops import count_operations
from deodar.checkpoint.loader import Checkpoint
from deodar.errors import ConfigError
from deodar.model.cpu import CpuModel
from deodar.model.reference import Reference

Report = Callable[[str], None]
WARM_UP_STEPS = 20
TURNS = 5
BIG_BYTES = 256_000_000
PIECE = 256


@dataclass(frozen=True, slots=True)
class Timing:
    """Medians over all steps of all turns, milliseconds per step."""

    wall_ms: float
    processor_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeResult:
    """One run. Bandwidths in GB/s (1e9 bytes), one thread reading.

    ratio: reference over compiled, processor time. operations_per_layer: torch operations of one
    step of the reference (mean over the layers; most: the largest). bandwidth_same: reading an
    array as large as a step's bytes again and again, so caches help as they help the model.
    """

    model: str
    machine: str
    prompt_tokens: int
    steps: int
    compiled: Timing
    reference: Timing
    ratio: float
    operations_per_layer: float
    operations_per_layer_most: int
    active_bytes: int
    bandwidth_memory: float
    bandwidth_same: float
    floor_memory_ms: float
    floor_same_ms: float

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


def bench_decode(folder: Path, *, prompt_tokens: int, steps: int, report: Report) -> DecodeResult:
    """Measure; `report` gets a line of progress per turn. steps: per turn and implementation."""
    torch.set_num_threads(1)
    checkpoint = Checkpoint.open(folder)
    vocab = checkpoint.config.vocab_size
    length = prompt_tokens + WARM_UP_STEPS + TURNS * steps
    limit = checkpoint.config.max_position_embeddings
    if length > limit:
        raise ConfigError(f"prompt and steps need {length} positions, the model has {limit}")
    ids = np.random.default_rng(0).integers(3, vocab - 64, length).tolist()
    model = CpuModel(checkpoint, slots=1, context=length, max_rows=PIECE)
    compiled = _compiled_step(model, ids, prompt_tokens)
    plain = Reference(checkpoint, "kv")
    reference = _reference_step(plain, ids, prompt_tokens)
    operations = count_operations(plain, ids[:prompt_tokens], ids[prompt_tokens])
    samples: dict[str, list[tuple[float, float]]] = {"compiled": [], "reference": []}
    for step in range(WARM_UP_STEPS):
        compiled(step)
        reference(step)
    for turn in range(TURNS):
        start = WARM_UP_STEPS + turn * steps
        samples["compiled"] += [_timed(compiled, start + i) for i in range(steps)]
        samples["reference"] += [_timed(reference, start + i) for i in range(steps)]
        report(f"turn {turn + 1} of {TURNS}")
    fast, slow = _medians(samples["compiled"]), _medians(samples["reference"])
    active = model.active_bytes(length)
    memory, same = reading_speed(BIG_BYTES), reading_speed(active)
    return DecodeResult(
        model=folder.name,
        machine=f"{processor_name()}, numpy {np.__version__}, torch {torch.__version__}",
        prompt_tokens=prompt_tokens,
        steps=steps * TURNS,
        compiled=fast,
        reference=slow,
        ratio=slow.processor_ms / fast.processor_ms,
        operations_per_layer=operations.mean,
        operations_per_layer_most=operations.most,
        active_bytes=active,
        bandwidth_memory=memory,
        bandwidth_same=same,
        floor_memory_ms=active / memory / 1e6,
        floor_same_ms=active / same / 1e6,
    )


def _compiled_step(model: CpuModel, ids: list[int], prompt_tokens: int) -> Callable[[int], None]:
    """Run the prompt; the function runs the token of step i after it."""
    for start in range(0, prompt_tokens, PIECE):
        part = ids[start : min(start + PIECE, prompt_tokens)]
        model.run_rows(part, [0] * len(part), range(start, start + len(part)), [])

    def step(i: int) -> None:
        at = prompt_tokens + i
        model.run_rows([ids[at]], [0], [at], [0])

    return step


def _reference_step(model: Reference, ids: list[int], prompt_tokens: int) -> Callable[[int], None]:
    state = model.new_state()
    model.forward(ids[:prompt_tokens], state)

    def step(i: int) -> None:
        model.forward([ids[prompt_tokens + i]], state)

    return step


def _timed(step: Callable[[int], None], i: int) -> tuple[float, float]:
    wall, processor = time.perf_counter(), time.process_time()
    step(i)
    return time.perf_counter() - wall, time.process_time() - processor


def _medians(samples: list[tuple[float, float]]) -> Timing:
    walls, processors = zip(*samples, strict=True)
    return Timing(statistics.median(walls) * 1e3, statistics.median(processors) * 1e3)


def processor_name() -> str:
    """The processor as Linux names it, else the architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def reading_speed(size: int) -> float:
    """GB/s of one thread that sums an array of `size` bytes, best of 12 passes."""
    array = np.ones(size // 8, np.int64)
    times = []
    for _ in range(12):
        start = time.perf_counter()
        array.sum()
        times.append(time.perf_counter() - start)
    return array.nbytes / min(times) / 1e9
