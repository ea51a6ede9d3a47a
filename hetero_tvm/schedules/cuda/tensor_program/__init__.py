"""CUDA design spaces of any loop nest: elementwise, transposes, reductions, scans."""
