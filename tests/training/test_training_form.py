"""The training form of the model computes what the specification says, before any training."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_training_form_and_export_hold_the_golden_numbers() -> None:
    # a process of its own: the training code's modules have short top-level names
    run = subprocess.run(
        [sys.executable, "training/golden.py", "tests/model"],
        cwd=ROOT, capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    assert "all equal" in run.stdout
    assert run.stdout.count("exported") == 5
