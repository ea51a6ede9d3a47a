"""Reference numbers for a model: float32 as other runtimes give them, float64 as near to exact.

A compiled model is judged by its distance from the float64 result, next to the distance that a
float32 reference has from it.
"""

from hetero_tvm.reference.accuracy import Accuracy, OutputAccuracy, compare
from hetero_tvm.reference.double import to_double
from hetero_tvm.reference.inputs import sample_inputs
from hetero_tvm.reference.rounding import judge, rounds, with_rounding, with_turned
from hetero_tvm.reference.running import (
    Reference,
    intermediate,
    program_tensors,
    run_reference,
    run_sampled,
    source_tensors,
    tensors_of_nodes,
)

__all__ = [
    "Accuracy",
    "OutputAccuracy",
    "Reference",
    "compare",
    "intermediate",
    "judge",
    "program_tensors",
    "rounds",
    "run_reference",
    "run_sampled",
    "sample_inputs",
    "source_tensors",
    "tensors_of_nodes",
    "to_double",
    "with_rounding",
    "with_turned",
]
