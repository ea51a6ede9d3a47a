"""CPU design spaces of convolutions and pooling."""
