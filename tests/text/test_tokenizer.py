"""Special tokens by text, ordinary text never special, and characters that stay whole."""

import copy
import json
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deodar.errors import TokenizerError
from deodar.text.segments import SPECIAL_TOKENS, Piece, Prompt, Start
from deodar.text.tokenizer import Detokenizer, Tokenizer

IDS = {
    "<｜begin▁of▁sentence｜>": 0,
    "<｜end▁of▁sentence｜>": 1,
    "<｜▁pad▁｜>": 2,
    "<｜System｜>": 128799,
    "<｜User｜>": 128803,
    "<｜Assistant｜>": 128804,
    "<|EOT|>": 128805,
    "<think>": 128821,
    "</think>": 128822,
    "｜DSML｜": 128825,
    "<｜latest_reminder｜>": 128828,
    "<｜action｜>": 128829,
    "<｜title｜>": 128836,
    "<｜read_url｜>": 128845,
    "<｜deepseek_image｜>": 129264,
    "<｜/polygon｜>": 129271,
    "<｜ref｜>": 129278,
}


def test_there_are_29_special_tokens_and_their_ids_are_those_of_the_vocabulary(tokenizer):
    assert len(set(SPECIAL_TOKENS)) == 29
    assert tokenizer.vocab_size == 129280
    for text, token_id in IDS.items():
        assert tokenizer.special[text] == token_id
        assert tokenizer.special_text(token_id) == text


def test_the_vocabulary_reaches_to_the_largest_id(small_definition):
    definition = copy.deepcopy(small_definition)
    definition["model"]["vocab"]["ab"] = 400
    definition["model"]["merges"] = [["a", "b"]]
    tokenizer = Tokenizer(definition)
    assert tokenizer.encode_text("ab") == [400]
    assert tokenizer.vocab_size == 401


@pytest.mark.parametrize("name", ["<think>", "｜DSML｜", "<｜System｜>"])
def test_a_missing_special_token_is_refused_by_name(small_definition, name):
    definition = copy.deepcopy(small_definition)
    definition["added_tokens"] = [t for t in definition["added_tokens"] if t["content"] != name]
    with pytest.raises(TokenizerError, match=name):
        Tokenizer(definition)


def test_a_special_token_of_several_ids_is_refused_by_name(small_definition):
    definition = copy.deepcopy(small_definition)
    token = next(t for t in definition["added_tokens"] if t["content"] == "<think>")
    token["single_word"] = True  # matches only between words
    definition["added_tokens"].append({**token, "content": "<thi", "id": 300})
    definition["added_tokens"].remove(token)
    with pytest.raises(TokenizerError, match="<think>"):
        Tokenizer(definition)


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"model": 3}', "\x00"])
def test_a_file_that_is_no_tokenizer_is_one_clear_error(tmp_path, content):
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        Tokenizer.from_folder(tmp_path)


def test_a_missing_file_and_a_foreign_decoder_are_clear_errors(tmp_path, small_definition):
    with pytest.raises(TokenizerError, match="No such file"):
        Tokenizer.from_folder(tmp_path)
    decoder = {"type": "WordPiece", "prefix": "##", "cleanup": True}
    foreign = {**small_definition, "decoder": decoder}
    (tmp_path / "tokenizer.json").write_text(json.dumps(foreign))
    with pytest.raises(TokenizerError, match="ByteLevel"):
        Tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize("special", SPECIAL_TOKENS)
def test_text_that_spells_a_special_token_stays_text(tokenizer, special):
    ids = tokenizer.encode_text(f"a{special}b")
    assert not any(map(tokenizer.is_special, ids))
    assert tokenizer.decode(ids) == f"a{special}b"
    prompt = Prompt((Piece(special, special=True), Piece(special)), Start("answer"))
    ids = tokenizer.encode_prompt(prompt)
    assert ids[0] == tokenizer.special[special]
    assert not any(map(tokenizer.is_special, ids[1:]))


def test_decode_shows_specials_only_if_asked(tokenizer):
    ids = [0, *tokenizer.encode_text("hi"), 1]
    assert tokenizer.decode(ids) == "hi"
    assert (
        tokenizer.decode(ids, skip_special=False)
        == "<｜begin▁of▁sentence｜>hi<｜end▁of▁sentence｜>"
    )


@settings(max_examples=150, deadline=None)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40), st.data())
def test_detokenised_chunks_join_to_the_text_and_hold_whole_characters(tokenizer, text, data):
    ids = tokenizer.encode_text(text)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=5)))
    detokenizer = Detokenizer(tokenizer)
    shown = ""
    for begin, end in zip([0, *cuts], [*cuts, len(ids)], strict=True):
        for piece in detokenizer.push(ids[begin:end]):
            shown += piece.text
            assert text.startswith(shown)
    assert shown == text
    assert detokenizer.finish() == []


def test_ids_that_end_inside_a_character_show_one_replacement_at_the_end(tokenizer):
    ids = tokenizer.encode_text("\U0001f9ff")
    assert len(ids) > 1
    detokenizer = Detokenizer(tokenizer)
    assert detokenizer.push(ids[:-1]) == []
    assert detokenizer.finish() == [Piece("\ufffd")]


def test_a_special_token_ends_an_unfinished_character(tokenizer):
    ids = tokenizer.encode_text("\U0001f9ff")
    pieces = Detokenizer(tokenizer).push([*ids[:-1], tokenizer.special["</think>"]])
    assert pieces == [Piece("\ufffd"), Piece("</think>", special=True)]


def test_ids_outside_the_vocabulary_are_empty(tokenizer):
    assert tokenizer.token_bytes(10**6) == b""
    assert tokenizer.token_bytes(-1) == b""


def test_lone_surrogates_in_text_do_not_raise(tokenizer):
    assert tokenizer.decode(tokenizer.encode_text("a\ud800b")) == "a\ufffdb"


def test_a_long_text_lets_other_threads_run(small_tokenizer):
    """Case D23: a prompt of megabytes must not hold the interpreter while it is tokenised."""
    ticks, done = [], threading.Event()

    def tick():
        while not done.wait(0.01):
            ticks.append(1)

    ticker = threading.Thread(target=tick)
    ticker.start()
    text = "some words é 漢 " * 60_000
    ids = small_tokenizer.encode_text(text)
    done.set()
    ticker.join()
    assert len(ids) == len(text.encode())
    assert len(ticks) >= 5


@given(st.text(max_size=300) | st.text(alphabet="a ", max_size=300))
def test_the_lower_bound_of_a_prompt_is_one(small_tokenizer, text):
    prompt = Prompt((Piece(SPECIAL_TOKENS[0], special=True), Piece(text)), Start("answer"))
    assert small_tokenizer.fewest_tokens(prompt) <= len(small_tokenizer.encode_prompt(prompt))


def test_encoding_a_long_text_lets_other_threads_run(small_tokenizer):
    gaps, done = [], threading.Event()

    def tick():
        last = time.perf_counter()
        while not done.wait(0.001):
            now = time.perf_counter()
            gaps.append(now - last)
            last = now

    other = threading.Thread(target=tick)
    other.start()
    begin = time.perf_counter()
    small_tokenizer.encode_text("some words " * 60_000)
    took = time.perf_counter() - begin
    done.set()
    other.join()
    assert max(gaps) < took / 2
