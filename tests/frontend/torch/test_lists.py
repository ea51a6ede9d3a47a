"""Operators on lists of tensors against PyTorch's own."""

import re

import pytest
import torch

from hetero_tvm.frontend.torch.lists import decompositions

ONE, TWO, THREE = ([torch.rand(2, 3) + 0.5, torch.rand(4) + 0.5] for _ in range(3))
MATRICES = [torch.rand(3, 3), torch.rand(2, 2)]
ARGUMENTS = {
    "Tensor[] self": ONE,
    "Tensor[] other": TWO,
    "Tensor[] exponent": TWO,
    "Tensor[] src": TWO,
    "Tensor[] mat2": MATRICES,
    "Tensor[] tensor1": TWO,
    "Tensor[] tensor2": THREE,
    "Tensor[] tensors1": TWO,
    "Tensor[] weights": THREE,
    "Tensor other": torch.tensor(1.5),
    "Tensor scalars": torch.tensor([0.25, 2.0]),
    "Scalar self": 1.5,
    "Scalar scalar": 0.75,
    "Scalar exponent": 2.5,
    "Scalar weight": 0.25,
    "Scalar[] scalars": [0.75, 2.0],
    "Scalar[] exponent": [0.5, 2.0],
    "Scalar[] weight": [0.25, 0.5],
}


@pytest.mark.parametrize("operator", decompositions(torch), ids=str)
def test_operators(operator):
    declared = [a for a in operator._schema.arguments if not a.has_default_value()]
    names = [
        re.sub(r"List\[(\w+)\]", r"\1[]", f"{a.type} {a.name}").replace("number", "Scalar") for a in declared
    ]
    if "Tensor[] mat2" in names:
        arguments = [MATRICES, MATRICES]
    else:
        arguments = [ARGUMENTS[name] for name in names]
    if operator._schema.name.endswith("acos") or operator._schema.name.endswith("asin"):
        arguments = [[x - 0.5 for x in ONE]]
    found, wanted = decompositions(torch)[operator](*arguments), operator(*arguments)
    assert len(found) == len(wanted) == 2
    torch.testing.assert_close(list(found), list(wanted))


def test_factors_by_name():
    aten, table = torch.ops.aten, decompositions(torch)
    for operator, given, options in (
        (aten._foreach_add.List, (ONE, TWO), {"alpha": -2.0}),
        (aten._foreach_addcdiv.Scalar, (ONE, TWO, THREE), {"value": -0.5}),
        (aten._foreach_norm.Scalar, (ONE, float("inf")), {}),
    ):
        torch.testing.assert_close(table[operator](*given, **options), operator(*given, **options))
