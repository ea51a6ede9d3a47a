"""Storage of tensors: image layouts, precision, live ranges, the arena, results in place."""
