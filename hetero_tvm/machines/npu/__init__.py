"""The reference NPU as data: sizes and rates, number formats, what kernels see."""
