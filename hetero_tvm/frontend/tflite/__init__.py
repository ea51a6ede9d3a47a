"""TensorFlow Lite (LiteRT) files -> ONNX, with the file itself as the judge of the numbers."""
