"""CPU design spaces of operators over rows: norms, softmax, rotary embedding, elementwise."""
