"""Strings to tokens and back: tokenizer, prompt rendering, output parsing. Never imports torch."""
