"""CPU kernels for extents that are known when they run."""
