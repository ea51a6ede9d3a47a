"""NPU design spaces of convolutions and pooling."""
