"""Direct convolution among planes of plain images."""
