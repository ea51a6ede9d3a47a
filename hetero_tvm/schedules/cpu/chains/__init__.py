"""Convolutions one after another as one kernel: what lies between them stays in caches."""
