"""Translation to ONNX: names, and what is refused."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from torch import nn
from torch.export import Dim, export

from hetero_tvm.api import import_model
from hetero_tvm.errors import ModelError, UnsupportedOperatorError
from hetero_tvm.frontend import source_names
from tests.frontend.torch.programs import IDS, Net, net


@pytest.mark.thorough
def test_nodes_are_called_as_in_the_program():
    model = import_model(export(net(), (IDS,)))
    nodes = {source_names(b.var) for block in model.module["main"].body.blocks for b in block.bindings}
    assert {"table/embedding", "norm/layer_norm", "body.1/gelu", "add"} <= nodes


@pytest.mark.thorough
def test_no_two_nodes_have_one_name():
    """ONNX Runtime refuses such a file; attention is many nodes with few kinds of operators."""

    class Attend(nn.Module):
        def forward(self, x):
            return torch.nn.functional.scaled_dot_product_attention(x, x, x)

    x = torch.rand(1, 2, 4, 8)
    model = import_model(export(Attend(), (x,)))
    names = [node.name for node in model.original.to_onnx().graph.node]
    assert len(set(names)) == len(names) > 4
    assert any(name.endswith("scaled_dot_product_attention.Mul.2") for name in names)


@pytest.mark.thorough
def test_everything_that_cannot_be_translated_is_listed():
    class Rare(nn.Module):
        def forward(self, x):
            return torch.linalg.svdvals(x) + torch.special.gammainc(x, x) + torch.special.gammainc(x.abs(), x)

    with pytest.raises(UnsupportedOperatorError) as failure:
        import_model(export(Rare(), (torch.rand(4, 4),)))
    assert failure.value.problems == (
        "prims.igamma.default: 2 nodes (igamma, igamma_1)",
        "aten._linalg_svd.default: 1 node (_linalg_svd)",
    )


class Noisy(nn.Module):
    def forward(self, x):
        return x + torch.rand_like(x)


class Scaled(nn.Module):
    def forward(self, x, n):
        return x * n


@pytest.mark.parametrize(
    "program, problem",
    [
        (
            lambda: export(Net().train(), (IDS,)),
            r"node body.2/dropout \(aten.dropout.default\) is in training mode",
        ),
        (lambda: export(Noisy(), (torch.rand(4),)), r"\(aten.rand_like.default\) draws random numbers"),
        (
            lambda: export(Scaled(), (torch.rand(4), 3), dynamic_shapes={"x": None, "n": Dim.DYNAMIC}),
            "input 'n' is a number, not a tensor",
        ),
    ],
)
def test_impure_programs_are_refused(program, problem):
    with pytest.raises(ModelError, match=problem):
        import_model(program())
