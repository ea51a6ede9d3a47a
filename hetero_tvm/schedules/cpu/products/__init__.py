"""CPU design spaces of matrix products."""
