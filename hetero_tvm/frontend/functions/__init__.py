"""Front end for operators that are already TVM's: TensorIR, tensor expressions, Relax functions."""
