"""Convolutions: what goes into their weights, and what follows them."""
