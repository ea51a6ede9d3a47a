"""ONNX files to Relax: load, check, clean, fold, expand, translate."""
