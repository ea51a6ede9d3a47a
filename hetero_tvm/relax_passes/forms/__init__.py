"""Rules that say an operator in terms of others for which there are kernels."""
