"""The forward pass: the readable torch reference (the oracle) and the compiled CPU twin.

Empty on purpose: importing the room must not import torch.
"""
