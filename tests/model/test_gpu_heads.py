"""The tiny checkpoint with real head sizes against its golden numbers (docs/tiny.md).

`gpu_heads_golden.json` was written by `python tests/model/test_gpu_heads.py --write` from the
reference in golden numerics, and agreed to 1e-5 with the training form of the model, a separate
implementation (docs/tiny.md says how). What the file proves here is that the reference stays put.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from deodar.checkpoint.loader import Checkpoint
from deodar.checkpoint.tiny import make_tiny, prompt_ids
from deodar.model.reference import ForwardResult, Reference
from deodar.model.state import State

GOLDEN = Path(__file__).with_name("gpu_heads_golden.json")
LENGTH = 200
SHOWN = (0, 60, 130, 199)


def measure(model: Reference, sizes: list[int]) -> dict[str, Any]:
    """The numbers of the golden file, from a prefill in chunks of `sizes`."""
    ids, state = prompt_ids(LENGTH), model.new_state()
    results = []
    start = 0
    for size in sizes:
        results.append(model.forward(ids[start : start + size], state))
        start += size
    assert start == LENGTH
    return _numbers(model, state, results)


def _numbers(model: Reference, state: State, results: list[ForwardResult]) -> dict[str, Any]:
    logits = torch.cat([r.logits for r in results])
    taps = torch.cat([r.taps for r in results])
    magnitudes = torch.cat([r.magnitudes for r in results], dim=1)
    candidates = torch.cat([r.candidates for r in results if r.candidates is not None])
    following = int(logits[-1].argmax())
    draft = model.draft(state, following)
    return {
        "logits_first8": {str(p): _rounded(logits[p, :8]) for p in SHOWN},
        "argmax": logits.argmax(-1).tolist(),
        "tap_first4": {str(p): _rounded(taps[p, :4]) for p in SHOWN},
        "magnitudes": {str(p): _rounded(magnitudes[:, p]) for p in SHOWN},
        "engram_rows": {
            str(layer): results[-1].engram_rows[layer][-1].tolist()
            for layer in model.config.engram_layer_ids
        },
        "chosen": {
            str(layer): {str(p): _kept(_joined(results, layer)[p]) for p in SHOWN}
            for layer in model.config.index_source_layer_ids
        },
        "candidates": {str(p): _kept(candidates[p]) for p in SHOWN},
        "draft_after": following,
        "drafts": draft.tokens.tolist(),
        "confidence": _rounded(draft.confidence),
    }


def _joined(results: list[ForwardResult], layer: int) -> torch.Tensor:
    return torch.cat([r.chosen[layer] for r in results])


def _rounded(values: torch.Tensor) -> list[float]:
    return [round(float(v), 5) for v in values]


def _kept(entries: torch.Tensor) -> list[int]:
    return [int(e) for e in entries if e >= 0]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Reference:
    folder = tmp_path_factory.mktemp("gpu_heads")
    make_tiny(folder, gpu_heads=True)
    return Reference(Checkpoint.open(folder), "golden")


@pytest.mark.parametrize("sizes", [[200], [61, 1, 2, 129, 7]], ids=str)
def test_gpu_heads_goldens(model: Reference, sizes: list[int]) -> None:
    wanted, found = json.loads(GOLDEN.read_text()), measure(model, sizes)
    exact = ("argmax", "engram_rows", "chosen", "candidates", "draft_after", "drafts")
    for key in exact:
        assert found[key] == wanted[key], key
    for key in ("logits_first8", "tap_first4", "magnitudes"):
        for position, values in wanted[key].items():
            assert found[key][position] == pytest.approx(values, abs=2e-4), (key, position)
    assert found["confidence"] == pytest.approx(wanted["confidence"], abs=1e-3)


def test_every_mechanism_is_at_work(model: Reference) -> None:
    """At position 199 the window is full, every choice is a choice and candidates exclude."""
    wanted, c = json.loads(GOLDEN.read_text()), model.config
    assert c.sliding_window < LENGTH
    assert all(len(at["199"]) == c.index_topk for at in wanted["chosen"].values())
    assert len(wanted["candidates"]["199"]) == c.candidate_topk_blocks
    inside = {e // c.candidate_block_size for e in wanted["chosen"]["8"]["199"]}
    assert inside <= set(wanted["candidates"]["199"])


def write() -> None:
    """Write the golden file anew."""
    with tempfile.TemporaryDirectory() as folder:
        make_tiny(folder, gpu_heads=True)
        numbers = measure(Reference(Checkpoint.open(folder), "golden"), [LENGTH])
    text = json.dumps(numbers, indent=1)
    GOLDEN.write_text(_flat_lists(text) + "\n")


def _flat_lists(text: str) -> str:
    """Lists of numbers on one line."""
    lines: list[str] = []
    for line in text.split("\n"):
        inside = bool(lines) and lines[-1].count("[") > lines[-1].count("]")
        if inside:
            lines[-1] += line.strip() if line.strip()[:1] == "]" else line.strip() + " "
        else:
            lines.append(line)
    return "\n".join(line.replace(" ]", "]") for line in lines)


if __name__ == "__main__" and sys.argv[1:] == ["--write"]:
    torch.set_num_threads(1)
    write()
