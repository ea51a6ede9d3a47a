"""ONNX Runtime's operators (``com.microsoft``) written out, a family in each module."""
