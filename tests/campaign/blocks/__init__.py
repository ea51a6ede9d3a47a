"""Blocks of networks as users have them, with open sizes, compared at the corners of their ranges."""
