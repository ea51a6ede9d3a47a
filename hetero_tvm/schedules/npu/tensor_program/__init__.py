"""Any chain of tensor expressions on the NPU: what no space of its own takes.

``recover`` reads the TensorIR of an operator into stages (element-wise maps, reductions, products,
gathers) over boxes in which every access is affine; the emitters write a stage as tiles.
"""
