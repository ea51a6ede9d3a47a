"""Translation to ONNX: names, and what is refused."""

import pytest

torch = pytest.importorskip("torch")
rewriter = pytest.importorskip("onnxscript.rewriter")

import onnx
from onnx.reference import ReferenceEvaluator
from torch import nn
from torch.export import Dim, export

from hetero_tvm.api import import_model
from hetero_tvm.errors import ModelError, UnsupportedOperatorError
from hetero_tvm.frontend import source_names
from hetero_tvm.frontend.torch.to_onnx import to_onnx
from tests.frontend.torch.programs import IDS, Net, net
from tests.selection import thorough


@pytest.mark.thorough
def test_nodes_are_called_as_in_the_program():
    model = import_model(export(net(), (IDS,)))
    nodes = {source_names(b.var) for block in model.module["main"].body.blocks for b in block.bindings}
    # As PyTorch has it, rows of a table count from 0 alone.
    assert {"table/embedding_from_0", "norm/layer_norm", "body.1/gelu", "add"} <= nodes


def test_programs_are_decomposed_once(monkeypatch):
    """Each pass traces the whole program anew, which takes longer than its translation."""
    passes = []
    run = torch.export.ExportedProgram.run_decompositions

    def counted(program, table=None):
        passes.append(program)
        return run(program, table)

    class Both(nn.Module):
        def forward(self, x):
            return torch.cdist(x, x) + nn.functional.mish(x).sum()  # one of ours, one of PyTorch's

    program = export(Both(), (torch.rand(3, 4),))
    monkeypatch.setattr(torch.export.ExportedProgram, "run_decompositions", counted)
    found = ReferenceEvaluator(to_onnx(program).proto).run(None, {"x": (x := torch.rand(3, 4)).numpy()})
    assert len(passes) == 1
    torch.testing.assert_close(torch.tensor(found[0]), Both()(x), rtol=1e-5, atol=1e-5)


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


class Rows(nn.Module):
    """Rows that are assigned one after the other."""

    def forward(self, x):
        x = x.clone()
        for row in range(1, len(x)):
            x[row, :row] = x[row, :row] + x[row - 1, :row]
        return x


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("least", "sought"), [pytest.param(1000, True, marks=pytest.mark.thorough), (20, False)]
)
def test_pairs_of_slices_are_sought_where_they_are_few(monkeypatch, least, sought):
    monkeypatch.setattr("hetero_tvm.frontend.torch.to_onnx._MANY_SLICES", least)
    before, seen = rewriter._DEFAULT_REWRITE_RULES, []
    program = export(Rows(), (torch.randn(12, 12),), strict=False)
    apply = rewriter.RewritePass.__init__

    def spy(self, rules):
        seen.extend(rules)
        apply(self, rules)

    monkeypatch.setattr(rewriter.RewritePass, "__init__", spy)
    to_onnx(program)
    assert seen and any(not rule._target_pattern.has_single_output_node for rule in seen) == sought
    assert rewriter._DEFAULT_REWRITE_RULES is before


class Guarded(nn.Module):
    """Small numbers that keep divisions finite, and factors close to one."""

    def forward(self, x, y):
        return x / (x + 1e-10), (x - 3e-9) / 1e-9, y * 1.000009, (y / 1.000008 - y) * 1e5, 1e-12 + x


def test_numbers_close_to_zero_or_one_count():
    x, y = torch.zeros(4), torch.rand(4) + 1
    proto = to_onnx(export(Guarded(), (x, y))).proto
    got = ReferenceEvaluator(proto).run(None, {"x": x.numpy(), "y": y.numpy()})
    for ours, truth in zip(got, Guarded()(x, y), strict=True):
        torch.testing.assert_close(torch.from_numpy(ours), truth, rtol=1e-6, atol=0)


class Bounded(nn.Module):
    """Bounds after bounds, several of one tensor, and some that leave a single number."""

    def forward(self, x):
        low, high = torch.tensor(-0.1), torch.tensor(0.3)
        between = x.maximum(low).minimum(high), x.minimum(high).maximum(high + 1).minimum(-low)
        clipped = x.clamp(-0.5, 0.3).relu(), x.clamp(-0.5, 0.6).relu(), x.clamp(-3.0, -1.0).relu()
        return *between, *clipped, x.clamp(0.0, 0.1).clamp(0.2, 0.3), x.relu().clamp(-2.0, -1.0)


def test_bounds_keep_their_order():
    x = torch.linspace(-2, 2, 41)
    got = ReferenceEvaluator(to_onnx(export(Bounded(), (x,))).proto).run(None, {"x": x.numpy()})
    for ours, truth in zip(got, Bounded()(x), strict=True):
        assert torch.equal(torch.from_numpy(ours), truth)


@pytest.mark.parametrize("dtype", [torch.float16, *thorough([torch.bfloat16])])
def test_results_have_the_types_of_the_program(dtype):
    class Sums(nn.Module):
        def forward(self, x):
            total = x.sum(0)
            return total, total.view(2, 2) + x[:2, :2], x.amax(0), x.prod(), x.cumsum(0)

    x = torch.rand(4, 4).to(dtype)
    kinds = {onnx.TensorProto.FLOAT16: torch.float16, onnx.TensorProto.BFLOAT16: torch.bfloat16}
    outputs = to_onnx(export(Sums(), (x,))).proto.graph.output
    assert {kinds.get(value.type.tensor_type.elem_type) for value in outputs} == {dtype}


class Mapped(nn.Module):
    """Rows of two tensors, and what they share, by PyTorch's ``map``."""

    def forward(self, a, b, shared):
        from torch._higher_order_ops.map import map as mapped

        return mapped(lambda rows, y: (rows[0] @ rows[1].T + y, rows[0].sum(-1)), (a, b), shared)


def test_maps_over_rows_are_scans():
    given = {"a": torch.rand(5, 2, 4), "b": torch.rand(5, 3, 4), "shared": torch.rand(3)}
    model = to_onnx(export(Mapped(), tuple(given.values()))).proto
    got = ReferenceEvaluator(model).run(None, {name: value.numpy() for name, value in given.items()})
    for ours, truth in zip(got, Mapped()(*given.values()), strict=True):
        torch.testing.assert_close(torch.from_numpy(ours), truth)


class Told(nn.Module):
    """A result between what is no tensor."""

    def forward(self, x):
        return {"kind": "scores", "scores": 2 * x, "width": x.shape[1], "scaled": True, "more": None}


def test_results_that_the_export_fixed_are_left_out():
    x = torch.rand(2, 3)
    model = to_onnx(export(Told(), (x,))).proto
    assert [output.name for output in model.graph.output] == ["scores"]
    (got,) = ReferenceEvaluator(model).run(None, {"x": x.numpy()})
    torch.testing.assert_close(torch.from_numpy(got), 2 * x)


class Counted(nn.Module):
    """A result and its number of rows."""

    def forward(self, x):
        return 2 * x, x.shape[0]


def test_open_sizes_are_results():
    x = torch.rand(5, 3)
    program = export(Counted(), (torch.rand(2, 3),), dynamic_shapes=({0: Dim("rows", min=2, max=9)},))
    model = to_onnx(program).proto
    assert [output.name for output in model.graph.output] == ["output_0", "output_1"]
    double, rows = ReferenceEvaluator(model).run(None, {"x": x.numpy()})
    torch.testing.assert_close(torch.from_numpy(double), 2 * x)
    assert rows == 5
