"""Kernels of what attention does with 8-bit values: products of computed operands, softmax of rows."""
