"""Families of language models: a configuration becomes a description of the model and its tensors' names."""
