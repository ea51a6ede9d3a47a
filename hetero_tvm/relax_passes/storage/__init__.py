"""Where tensors lie: image layouts, precision, live ranges, the arena, in-place results."""
