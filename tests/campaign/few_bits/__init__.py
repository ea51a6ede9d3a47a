"""Random small products and convolutions of few bits, compared with their definitions."""
