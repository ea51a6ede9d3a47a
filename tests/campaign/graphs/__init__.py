"""Generated ONNX graphs, compared with ONNX Runtime and the ONNX reference evaluator."""
