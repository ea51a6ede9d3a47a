"""Design spaces of products of bfloat16."""
