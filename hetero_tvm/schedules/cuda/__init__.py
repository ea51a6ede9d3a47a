"""CUDA design spaces: what their folders share lies here, one folder a family of operators."""
