"""What design spaces and cost models need to know of a CPU, a GPU, an NPU: frozen data, no TVM."""
