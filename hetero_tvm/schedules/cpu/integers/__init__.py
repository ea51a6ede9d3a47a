"""Design spaces for products of 8-bit integers on a CPU."""
