"""Train the seedling's tokenizer and derive its Engram token map.

Run as `python training/tokenizer.py TEXT_DIR SAMPLES OUT_DIR` after `corpus.py`; SAMPLES is a text
file of rendered chat samples without their special tokens. Writes `tokenizer.json` (byte-level BPE,
exactly 8,192 ids) and `engram_map.npy`. What must hold: ids 0-2 are BOS, EOS and PAD, the last 26
ids are the other special tokens of the chat format by their exact texts, digits are split one by
one, and no merge can spell a special token.
"""

# ruff: noqa: E501

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

VOCAB = 8192
FIRST = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>")
LAST = (
    "<｜System｜>", "<｜fim▁hole｜>", "<｜fim▁begin｜>", "<｜fim▁end｜>", "<｜User｜>", "<｜Assistant｜>",
    "<|EOT|>", "<think>", "</think>", "｜DSML｜", "<｜latest_reminder｜>", "<｜action｜>", "<｜query｜>",
    "<｜authority｜>", "<｜domain｜>", "<｜title｜>", "<｜read_url｜>", "<｜deepseek_image｜>",
    "<｜/polygon｜>", "<｜polygon｜>", "<｜/point｜>", "<｜point｜>", "<｜/box｜>", "<｜box｜>",
    "<｜/ref｜>", "<｜ref｜>",
)  # fmt: skip
SPLIT = r" ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s*[\r\n]+|\s+(?!\S)|\s+"


def pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    """Digits alone, then words with their blank, runs of signs, line breaks; then bytes."""
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def sampled(text_dir: Path, samples: Path, rng: random.Random) -> Iterator[str]:
    """About 45 MB: a share of each kind of text, and all chat samples."""
    for kind, share in (("prose", 0.7), ("tech", 0.25), ("code", 0.15)):
        with (text_dir / f"{kind}.jsonl").open() as lines:
            for line in lines:
                if rng.random() < share:
                    yield json.loads(line)["text"]
    yield from samples.read_text().split("\x00")


def train(text_dir: Path, samples: Path) -> Tokenizer:
    """Train the merges, then lay out the ids with the special tokens around them."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB - len(FIRST) - len(LAST),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sampled(text_dir, samples, random.Random(0)), trainer)
    trained = json.loads(tokenizer.to_str())
    pieces = sorted(trained["model"]["vocab"].items(), key=lambda kv: kv[1])
    names = [*FIRST, *(piece for piece, _ in pieces)]
    names += [f"<｜place▁holder▁no▁{i}｜>" for i in range(VOCAB - len(names) - len(LAST))]
    names += LAST
    assert len(names) == len(set(names)) == VOCAB, (len(names), len(set(names)))
    trained["model"]["vocab"] = {name: i for i, name in enumerate(names)}
    trained["decoder"] = json.loads(decoders.ByteLevel().__getstate__())
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    trained["added_tokens"] = [
        {"id": i, "content": name, **flags, "special": True}
        for i, name in enumerate(names)
        if i < len(FIRST) or i >= len(FIRST) + len(pieces)
    ]
    return Tokenizer.from_str(json.dumps(trained))


def engram_map(tokenizer: Tokenizer) -> np.ndarray:
    """Token id -> compressed id: tokens that read alike share one, in order of first use."""
    lone = "\ue000"
    normalize = normalizers.Sequence(
        [
            normalizers.NFKC(),
            normalizers.NFD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
            normalizers.Replace(Regex(r"[ \t\r\n]+"), " "),
            normalizers.Replace(Regex(r"^ $"), lone),
            normalizers.Strip(),
            normalizers.Replace(lone, " "),
        ]
    )
    classes: dict[str, int] = {}
    out = np.empty(VOCAB, np.int64)
    for token in range(VOCAB):
        text = tokenizer.decode([token], skip_special_tokens=False)
        key = (
            tokenizer.id_to_token(token)
            if "\ufffd" in text
            else normalize.normalize_str(text) or text
        )
        out[token] = classes.setdefault(key, len(classes))
    return out


def main() -> None:
    """Train, check the layout, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name in ("text_dir", "samples", "out"):
        parser.add_argument(name, type=Path)
    args = parser.parse_args()
    tokenizer = train(args.text_dir, args.samples)
    for token, name in (*enumerate(FIRST), *enumerate(LAST, VOCAB - len(LAST))):
        assert tokenizer.token_to_id(name) == token, name
        assert tokenizer.encode(name).ids == [token], name
    mapped = engram_map(tokenizer)
    args.out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(args.out / "tokenizer.json"))
    np.save(args.out / "engram_map.npy", mapped)
    print(f"vocab {tokenizer.get_vocab_size()}, classes {mapped.max() + 1}, {mapped[:4]}")


if __name__ == "__main__":
    main()
