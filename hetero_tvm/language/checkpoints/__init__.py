"""Checkpoints whose weights are quantized already, and GGUF files, read as those of transformers are."""
