"""The documents name things that exist, and their Python examples run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("training/*.md")])
PATH_LIKE = re.compile(r"`((?:[\w.-]+/)+[\w.-]*)`")
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


def identifier(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=identifier)
def test_paths_in_back_ticks_exist(page: Path) -> None:
    bases = (ROOT, ROOT / "src" / "deodar", page.parent)
    named = PATH_LIKE.findall(page.read_text(encoding="utf-8"))
    missing = [name for name in named if not any((base / name).exists() for base in bases)]
    # Model ids, mime types and routes also hold slashes; routes start with one and never match.
    assert [name for name in missing if not name.startswith(("text/", "application/"))] == []


@pytest.mark.parametrize("page", PAGES, ids=identifier)
def test_links_lead_somewhere(page: Path) -> None:
    links = LINK.findall(page.read_text(encoding="utf-8"))
    local = [link for link in links if "://" not in link]
    assert [link for link in local if not (page.parent / link).exists()] == []


def python_examples() -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        blocks = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
        found += [(f"{identifier(page)}:{i}", block) for i, block in enumerate(blocks)]
    return found


@pytest.mark.parametrize(
    "block", [b for _, b in python_examples()], ids=[name for name, _ in python_examples()]
)
def test_python_examples_run(block: str) -> None:
    exec(compile(block, "example", "exec"), {"__name__": "example"})
