"""PyTorch programs to Relax: ``load``, ``to_onnx``, then as ONNX; ``run`` gives their reference numbers."""
