"""Quotients and remainders of integers: of indices, of counts, and of what tensors hold."""
