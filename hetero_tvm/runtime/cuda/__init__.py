"""CUDA libraries at run time: devices, streams, graphs."""
