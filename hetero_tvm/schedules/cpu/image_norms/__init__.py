"""Design spaces of normalisations of images in blocks of channels."""
