"""Operators on volumes as those of images of their slices."""
