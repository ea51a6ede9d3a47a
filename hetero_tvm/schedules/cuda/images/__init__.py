"""CUDA design spaces of convolutions and pooling."""
