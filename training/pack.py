"""Tokenise the text documents, and pack or unpack the whole training set.

Run as `python training/pack.py TEXT_DIR OUT_DIR [--limit-mb N]` after `synth.py`: writes the text
arrays, `meta.json` and `data.tar` (xz members). On the training machine call `unpack(path, out)`,
which needs numpy and the standard library only. What must hold: unpacking gives the same arrays.
"""

from __future__ import annotations

import argparse
import io
import json
import lzma
import tarfile
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import numpy as np

# Two-byte alignment for token arrays; the literal context follows the byte's place in the pair.
FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 6, "lc": 2, "lp": 1, "pb": 1, "dict_size": 1 << 26}]
PLAIN = ("tokenizer.json", "engram_map.npy", "meta.json")
ARRAYS = (
    "text_prose",
    "text_code",
    "text_tech",
    "chat",
    "long",
    "val_prose",
    "val_code",
    "val_chat",
)


def _compress(job: tuple[str, bytes]) -> tuple[str, bytes]:
    name, data = job
    return name, lzma.compress(data, format=lzma.FORMAT_XZ, filters=FILTERS)


def pack(folder: Path, path: Path, workers: int = 2) -> int:
    """Write every file of the training set below `folder` into one archive; returns its bytes."""
    jobs = [(name, (folder / name).read_bytes()) for name in PLAIN]
    for name in ARRAYS:
        with np.load(folder / f"{name}.npz") as arrays:
            for key in arrays.files:
                buffer = io.BytesIO()
                array = arrays[key]
                np.save(buffer, np.diff(array, prepend=0) if key == "starts" else array)
                jobs.append((f"{name}/{key}.npy", buffer.getvalue()))
    part = path.with_suffix(".part")
    with ProcessPoolExecutor(workers) as pool, tarfile.open(part, "w") as archive:
        jobs.sort(key=lambda job: -len(job[1]))
        for name, data in pool.map(_compress, jobs):
            info = tarfile.TarInfo(name + ".xz")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    part.rename(path)
    return path.stat().st_size


def unpack(path: Path | str, out_dir: Path | str) -> None:
    """Recreate the files of `pack` in `out_dir` (numpy and standard library only)."""
    out = Path(out_dir)
    out.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path) as archive:
        members = [(m.name, archive.extractfile(m).read()) for m in archive.getmembers()]
    with ThreadPoolExecutor(16) as pool:  # lzma lets go of the interpreter lock
        contents = list(pool.map(lambda m: lzma.decompress(m[1]), members))
    grouped: dict[str, dict[str, np.ndarray]] = {}
    for (name, _), data in zip(members, contents, strict=True):
        folder, _, key = name.removesuffix(".xz").rpartition("/")
        if not folder:
            (out / key).write_bytes(data)
            continue
        array = np.load(io.BytesIO(data))
        key = key.removesuffix(".npy")
        grouped.setdefault(folder, {})[key] = np.cumsum(array) if key == "starts" else array
    for folder, arrays in grouped.items():
        np.savez(out / f"{folder}.npz", **arrays)


def text_arrays(path: Path, tokenizer: object, limit: int) -> dict[str, np.ndarray]:
    """One kind of text: BOS, document, EOS, one after another, up to `limit` characters."""
    texts, sizes, used = [], [], 0
    with path.open() as lines:
        documents = [json.loads(line) for line in lines]
    np.random.default_rng(3).shuffle(documents)
    for document in documents:
        if used >= limit:
            break
        texts.append(document["text"])
        sizes.append(len(document["text"].encode()))
        used += len(document["text"])
    parts, starts, total = [], [], 0
    for first in range(0, len(texts), 200):
        for encoded in tokenizer.encode_batch(texts[first : first + 200], add_special_tokens=False):
            starts.append(total)
            parts.append(np.array([0, *encoded.ids, 1], np.uint16))
            total += len(parts[-1])
    return {
        "tokens": np.concatenate(parts),
        "starts": np.array(starts, np.int64),
        "bytes": np.array(sizes, np.int64),
    }


def write_texts(text_dir: Path, out: Path, limit_mb: dict[str, float]) -> None:
    """Tokenise all kinds of text and the held-out documents."""
    from synth import Encoder, save

    tokenizer = Encoder(out / "tokenizer.json").plain
    for kind in ("prose", "code", "tech"):
        limit = int(limit_mb[kind] * 1e6)
        save(out / f"text_{kind}.npz", text_arrays(text_dir / f"{kind}.jsonl", tokenizer, limit))
    for kind in ("prose", "code"):
        held = text_arrays(text_dir / f"heldout_{kind}.jsonl", tokenizer, 10**9)
        save(out / f"val_{kind}.npz", held)


def write_meta(out: Path) -> None:
    """Special ids, class count of the Engram map, and sizes of every array."""
    from synth import KINDS

    full = json.loads((out / "tokenizer.json").read_text())
    specials = {t["content"]: t["id"] for t in full["added_tokens"]}
    counts = {}
    for name in ARRAYS:
        with np.load(out / f"{name}.npz") as arrays:
            counts[name] = {"tokens": len(arrays["tokens"]), "samples": len(arrays["starts"])}
            if "bytes" in arrays.files:
                counts[name]["bytes"] = int(arrays["bytes"].sum())
    meta = {
        "vocab_size": 8192,
        "specials": specials,
        "system_id": specials["<｜System｜>"],
        "engram_compressed_vocab_size": int(np.load(out / "engram_map.npy").max()) + 1,
        "kinds": list(KINDS),
        "counts": counts,
    }
    part = out / "meta.json.part"
    part.write_text(json.dumps(meta, ensure_ascii=False, indent=1))
    part.rename(out / "meta.json")


def main() -> None:
    """Text arrays, meta data, archive."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text_dir", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--mb", type=float, nargs=3, default=(30, 45, 36), help="prose code tech")
    args = parser.parse_args()
    limits = dict(zip(("prose", "code", "tech"), args.mb, strict=True))
    write_texts(args.text_dir, args.out, limits)
    write_meta(args.out)
    size = pack(args.out, args.out / "data.tar")
    print(f"data.tar: {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
