"""Contracts of products and convolutions of 8-bit integers."""
