"""Tuning records: the store, candidates and combinations of them, the choice for a build."""
