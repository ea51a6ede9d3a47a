"""CUDA design spaces of operators over rows: norms and softmax."""
