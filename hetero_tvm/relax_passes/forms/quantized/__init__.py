"""Convolutions and means of 8-bit numbers in terms of convolutions of images, for ``fusions/integers/``."""
