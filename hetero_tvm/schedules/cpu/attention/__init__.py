"""CPU design space of fused attention."""
