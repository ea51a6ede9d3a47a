"""Fusions of 8-bit integers: products, sums and moves between quantisers, and quantising float products."""
