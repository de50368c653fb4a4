"""The golden files beside the tests."""

import json
from pathlib import Path

GOLDEN = Path(__file__).parent / "golden"


def golden_cases(name):
    """The cases of one golden file."""
    return json.loads((GOLDEN / name).read_text(encoding="utf-8"))["cases"]
