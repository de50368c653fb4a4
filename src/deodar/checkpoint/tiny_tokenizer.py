"""The tokenizer of the tiny checkpoint: 512 ids, byte-level BPE, every special token by its text.

    0..2      begin, end, pad          3..258    the 256 bytes
    259..469  merges                   470..510  the other special tokens, then place holders
    511       one more merge

Called by `make_tiny`. Merges are learned from the paragraph below, so the file is deterministic.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from deodar.checkpoint.writer import write_json
from deodar.config import ModelConfig

FIRST_SPECIALS = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>")
NOISE, IMAGE = "<｜System｜>", "<｜deepseek_image｜>"
OTHER_SPECIALS = (
    *("<｜fim▁hole｜>", "<｜fim▁begin｜>", "<｜fim▁end｜>", "<｜User｜>", "<｜Assistant｜>"),
    *("<|EOT|>", "<think>", "</think>", "｜DSML｜", "<｜latest_reminder｜>"),
    *(
        "<｜action｜>",
        "<｜query｜>",
        "<｜authority｜>",
        "<｜domain｜>",
        "<｜title｜>",
        "<｜read_url｜>",
    ),
    *("<｜/polygon｜>", "<｜polygon｜>", "<｜/point｜>", "<｜point｜>"),
    *("<｜/box｜>", "<｜box｜>", "<｜/ref｜>", "<｜ref｜>"),
)
_OTHER_FIRST, _NOISE_ID, _IMAGE_ID = 470, 509, 510

_TEXT = """
The deodar is a cedar of the western mountains. It grows slowly, stands for a thousand years and
gives a wood that does not rot. People who live near it build houses, bridges and boats from it, and
they have written about it for a long time. When the snow melts in the spring, the water runs down
between the roots and fills the rivers of the plain. There are other trees that grow faster, but
none of them is better for a house that should be there for the children of the children. A good
program is a little like this tree: it is made of few parts, each of them can be understood, and it
is still there when the fashion of the year has gone. This paragraph was written so that a very
small tokenizer has something to learn from; it holds the most common words of the language, some
numbers such as 10, 12, 100 and 2026, and a line of code: for i in range(10): print(i, x[i] + 1)
"""


def special_tokens(config: ModelConfig) -> dict[int, str]:
    """Special token texts by id; place holders fill what is left below the noise token."""
    specials = dict(enumerate(FIRST_SPECIALS))
    for token_id in range(_OTHER_FIRST, _NOISE_ID):
        index = token_id - _OTHER_FIRST
        known = index < len(OTHER_SPECIALS)
        specials[token_id] = (
            OTHER_SPECIALS[index]
            if known
            else f"<｜place▁holder▁no▁{index - len(OTHER_SPECIALS)}｜>"
        )
    specials[_NOISE_ID], specials[_IMAGE_ID] = NOISE, IMAGE
    assert config.dspark_noise_token_id == _NOISE_ID
    assert config.image_token_id == _IMAGE_ID
    return specials


def build_tokenizer(config: ModelConfig) -> Tokenizer:
    """The tokenizer with `config.vocab_size` (512) ids."""
    specials = special_tokens(config)
    vocab = {text: token_id for token_id, text in specials.items()}
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    for index, symbol in enumerate(alphabet):
        vocab[symbol] = len(FIRST_SPECIALS) + index
    free = [i for i in range(config.vocab_size) if i not in set(vocab.values())]
    splitter = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    words = Counter(tuple(word) for word, _ in splitter.pre_tokenize_str(_TEXT))
    merges = _learn_merges(words, len(free))
    vocab.update({a + b: token_id for token_id, (a, b) in zip(free, merges, strict=True)})
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(text, normalized=False, special=True) for text in specials.values()]
    )
    return tokenizer


def write_tokenizer(folder: Path, config: ModelConfig) -> None:
    """tokenizer.json and tokenizer_config.json."""
    build_tokenizer(config).save(str(folder / "tokenizer.json"))
    begin, end, pad = FIRST_SPECIALS
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": False,
        "add_eos_token": False,
        "clean_up_tokenization_spaces": False,
        "bos_token": begin,
        "eos_token": end,
        "pad_token": pad,
        "model_max_length": config.max_position_embeddings,
    }
    write_json(folder / "tokenizer_config.json", settings)


def _learn_merges(words: Counter[tuple[str, ...]], count: int) -> list[tuple[str, str]]:
    """The `count` most frequent pairs, one after the other; ties go to the smaller text."""
    merges: list[tuple[str, str]] = []
    while len(merges) < count:
        pairs: Counter[tuple[str, str]] = Counter()
        for word, times in words.items():
            for pair in zip(word, word[1:], strict=False):
                pairs[pair] += times
        made = {a + b for a, b in merges}
        best = min(
            (pair for pair in pairs if "".join(pair) not in made),
            key=lambda pair: (-pairs[pair], pair),
        )
        merges.append(best)
        words = _apply(words, best)
    return merges


def _apply(words: Counter[tuple[str, ...]], pair: tuple[str, str]) -> Counter[tuple[str, ...]]:
    result: Counter[tuple[str, ...]] = Counter()
    for word, times in words.items():
        joined: list[str] = []
        for symbol in word:
            # Left to right: a merged symbol never equals pair[0], so it is not merged again.
            if joined and (joined[-1], symbol) == pair:
                joined[-1] += symbol
            else:
                joined.append(symbol)
        result[tuple(joined)] += times
    return result
