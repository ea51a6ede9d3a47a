"""Regions of a graph: their borders, and the names of their kernels."""

import re

import pytest

from hetero_tvm import api
from hetero_tvm.host.tvm import relax
from hetero_tvm.relax_passes.rewriting.graph import variables_in
from hetero_tvm.targets.npu.regions.graph_region import GraphRegion, divided
from hetero_tvm.targets.npu.regions.placement import place
from hetero_tvm.targets.npu.regions.region import KernelCache


@pytest.fixture(scope="module", params=["gpt2-small-tiny", "mobilenetv2-tiny"])
def placed(request):
    model = api.optimize_model(api.import_model(f"zoo:{request.param}"), "npu:edge")
    return place(model.module, model.tasks, model.target), KernelCache(model.target.machine)


def test_borders_are_all_that_others_make_or_use(placed):
    graph, cache = placed
    pieces = list(divided(graph, {}, cache))
    regions = [piece for piece in pieces if isinstance(piece, GraphRegion)]
    assert regions
    bindings = [(b.var, b.value) for block in graph.module["main"].body.blocks for b in block.bindings]
    results = set(variables_in(graph.module["main"].body.body))
    for region in regions:
        inside = {var for var, _ in region.members}
        assert set(region.inputs) == {v for _, value in region.members for v in variables_in(value)} - inside
        used_outside = {v for var, value in bindings if var not in inside for v in variables_in(value)}
        assert set(region.outputs) == inside & (used_outside | results)
    on_host = [piece for piece in pieces if isinstance(piece, relax.VarBinding)]
    assert len(on_host) + sum(len(region.members) for region in regions) == len(bindings)


def test_kernels_bear_names_of_the_source_model(placed):
    graph, cache = placed
    for region in divided(graph, {}, cache):
        if isinstance(region, GraphRegion):
            names = [step.name for step in region.prepare(region.builder())[0]]
            assert len(names) == len(set(names))
            assert not [name for name in names if re.fullmatch(r"(lv|gv)\d*", name)]


def test_the_function_takes_and_returns_what_crosses_the_border(placed):
    graph, cache = placed
    for region in divided(graph, {}, cache):
        if isinstance(region, GraphRegion):
            function = region.function()
            assert [str(p.ty) for p in function.params] == [str(v.ty) for v in region.inputs]
            returned = function.ret_ty.fields if len(region.outputs) > 1 else [function.ret_ty]
            assert [str(ty) for ty in returned] == [str(v.ty) for v in region.outputs]
            assert function.attrs["global_symbol"] == region.name
