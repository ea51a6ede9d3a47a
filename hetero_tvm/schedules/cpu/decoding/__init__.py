"""Kernels of a decoder's step on a CPU: few rows or many, weights in memory in any stored form.

They have one form per machine instead of a design space: the number of rows comes at run time, the products
of one row are bound by memory, and the weights must lie the same way for all numbers of rows.
"""
