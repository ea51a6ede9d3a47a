"""Chains of tensor expressions on the NPU: operators that no other space takes.

``recover`` reads the TensorIR of an operator into stages (element-wise maps, reductions, products,
gathers) over boxes in which every access is affine; the emitters write a stage as tiles.
"""
