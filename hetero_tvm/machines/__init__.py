"""Descriptions of a CPU, a GPU, an NPU for design spaces and cost models: frozen data, no TVM."""
