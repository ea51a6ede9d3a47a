"""Shapes that operands must have: patterns, and a table of them for each domain."""
