"""Tensors with as many elements along an axis as the values say: padded, with a count beside them."""
