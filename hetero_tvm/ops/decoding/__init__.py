"""Contracts of what a decoder's step is made of, for targets that have kernels for it."""
