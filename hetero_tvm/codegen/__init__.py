"""TensorIR to machine code: the lowering pipeline that every compilation goes through."""
