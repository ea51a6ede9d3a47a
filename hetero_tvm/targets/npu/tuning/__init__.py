"""Search for NPU kernels and for whole models on it."""
