"""Ranges of activations from samples: what quantisation rounds by."""
