"""A tokenizer for tests: every byte is a token, then come the special tokens."""

from tokenizers.pre_tokenizers import ByteLevel

from deodar.text.segments import SPECIAL_TOKENS


def small_definition():
    """A byte-level tokenizer.json without merges: 256 byte tokens, then the special tokens."""
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
