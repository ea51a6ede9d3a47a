"""Front end for StableHLO, which JAX and other frameworks export: text, bytecode, ``jax.export``."""
