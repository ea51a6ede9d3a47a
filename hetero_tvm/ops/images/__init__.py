"""Operators on images in layouts of their own."""
