"""Contracts of products and convolutions with 8-bit integers, and with weights stored in few bits."""
