"""Rewrites of graphs as Dynamo gives them, so that fewer values are fixed."""
