"""Contracts of the fused operators: semantics, attributes, operands, cost, and the unscheduled kernel."""
