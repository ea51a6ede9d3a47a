"""NPU design spaces of images: conv2d, depthwise and 8-bit convolutions, pool2d."""
