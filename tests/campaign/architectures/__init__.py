"""Tiny models of many architectures by every way in that PyTorch's users have."""
