"""Changes to the node tests of the official ONNX suite, each judged as generated graphs are."""
