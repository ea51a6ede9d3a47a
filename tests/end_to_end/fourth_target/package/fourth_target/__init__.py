"""A target of another package: an engine with its own pass, space, code generation, measuring and profile."""
