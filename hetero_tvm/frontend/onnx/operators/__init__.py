"""Converters of ONNX operators by kind, and what they share."""
