"""Write the held-out text that ships with `deodar eval` (about 150 KB of prose and of code).

Run as `python training/heldout.py TEXT_DIR` after `corpus.py`. The documents are whole or cut at
the end; none is in the training text (the split of `corpus.py`), and of those the ones chosen here
share less than 2 % of their 12-word sequences with any training document.
"""

# ruff: noqa: E501

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

CHOSEN = {
    "prose": (
        ("moby-dick/", 10_000), ("sotu/1997_william_j_clinton_d", 40_000),
        ("sotu/1917_woodrow_wilson_d", 25_000), ("sotu/1820_james_monroe_dr", 25_000),
        ("sotu/1903_theodore_roosevelt_r", 25_000), ("verse/henry_viii_gut", 20_000),
    ),
    "code": (
        ("python/shutil.py", 50_000), ("python/contextlib.py", 30_000), ("python/statistics.py", 25_000),
        ("python/numbers.py", 12_000), ("python/asyncio/timeouts.py", 8_000),
        ("flask/flask/config.py", 15_000), ("celery/celery/utils/threads.py", 15_000),
    ),
}  # fmt: skip
OUT = Path(__file__).parents[1] / "src/deodar/evaluation/data"


def main() -> None:
    """Documents of each kind joined by NUL, gzipped without a time stamp."""
    OUT.mkdir(parents=True, exist_ok=True)
    for kind, chosen in CHOSEN.items():
        found = []
        with (Path(sys.argv[1]) / f"heldout_{kind}.jsonl").open() as lines:
            for document in map(json.loads, lines):
                for name, limit in chosen:
                    if document["name"].startswith(name):
                        found.append(document["text"][:limit])
        data = "\0".join(found).encode()
        packed = gzip.compress(data, 9, mtime=0)
        (OUT / f"{kind}.txt.gz").write_bytes(packed)
        print(f"{kind}: {len(found)} documents, {len(data)} bytes, {len(packed)} packed")


if __name__ == "__main__":
    main()
