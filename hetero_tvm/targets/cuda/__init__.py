"""The CUDA target: NVIDIA GPUs, built with or without one at hand."""
