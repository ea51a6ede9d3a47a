"""Contracts of what runs in rounds: recurrent layers, and the ends of loops."""
