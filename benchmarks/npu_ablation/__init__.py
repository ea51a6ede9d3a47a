"""Variants of the region compiler that leave something out, to measure what it is worth in cycles."""
