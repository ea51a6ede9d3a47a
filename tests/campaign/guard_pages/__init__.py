"""Kernels beside memory that nobody may touch: what they read and write beyond their tensors."""
