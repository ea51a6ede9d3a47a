"""Contracts of operators on volumes whose slices are images."""
