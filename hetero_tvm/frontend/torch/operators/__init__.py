"""Decompositions of PyTorch operators, one family a file; ``decompositions.py`` collects them."""
