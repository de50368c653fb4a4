"""Files to named tensors: the released layout, read and written. Never imports torch."""
