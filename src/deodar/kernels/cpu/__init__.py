"""The compiled CPU operators (numba). `stack` is the forward pass; the others are its parts.

Every product adds in the order of its inner dimension, with vectors along the outputs, and every
sum over a row has 16 fixed lanes: a row's bits depend on neither its place nor its mates.
"""
