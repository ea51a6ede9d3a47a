"""Operators written out as plain ones, a family a file."""
