"""CUDA design spaces of attention."""
