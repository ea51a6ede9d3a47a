"""Memory of the road from a model file to the first call, seen from outside, for many kinds of files."""
