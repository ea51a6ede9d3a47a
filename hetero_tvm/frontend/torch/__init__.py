"""PyTorch programs to Relax: load, export to ONNX, and the program itself as the reference."""
