"""Kernels read as nests of loops over one expression each, whatever the target."""
