"""Values in a store that are computed before it, one after the other."""
