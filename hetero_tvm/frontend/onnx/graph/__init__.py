"""Nodes that replace others, and constants kept apart from their graph: what all steps of import share."""
