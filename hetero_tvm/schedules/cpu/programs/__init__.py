"""Kernels that no contract covers, emitted from their loop nests."""
