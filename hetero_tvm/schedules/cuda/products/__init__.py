"""CUDA design spaces of matrix products, and what their kernels share."""
