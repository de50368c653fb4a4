"""Logits to tokens. Never imports torch."""
