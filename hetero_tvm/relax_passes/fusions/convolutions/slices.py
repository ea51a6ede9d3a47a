"""Convolutions of windows of slices read the slices where they lie."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from hetero_tvm.host.tvm import Expr, Var
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.volumes.conv3d import Conv3d
from hetero_tvm.ops.volumes.slice_windows import SliceWindows
from hetero_tvm.relax_passes.rewriting.fused import contract
from hetero_tvm.relax_passes.rewriting.graph import Graph
from hetero_tvm.relax_passes.rewriting.rule import Miss, Rule


class ReadSlices(Rule):
    """``conv2d(slice_windows(x), W)`` -> ``conv3d(x, W)``: what windows share is not copied for each.

    ``takes`` says whether the target has a kernel for it, ``pays`` whether that takes less time than the
    windows and their plain convolution (plain, convolution of slices).
    """

    name = "conv_slices"
    anchors = ("relax.call_tir",)

    def __init__(self, takes: Callable[[Conv3d], bool], pays: Callable[[Conv2d, Conv3d], bool]):
        self._takes, self._pays = takes, pays

    def match(self, graph: Graph, var: Var) -> tuple[Conv3d, list[Expr]] | None:
        module = graph.functions()
        op = contract(module, graph.value(var))
        if type(op) is not Conv2d:
            return None
        x, *operands = graph.value(var).args[1].fields
        windows = contract(module, graph.value(x))
        if not isinstance(windows, SliceWindows):
            return None
        if windows.dilation > 1:
            raise Miss(f"slices of a window are {windows.dilation} apart")
        sliced = Conv3d.of(op, windows)
        if not self._takes(dataclasses.replace(sliced, epilogue=())):
            raise Miss("no kernel reads slices of this form")
        if not self._pays(op, sliced):
            raise Miss("copies of the slices take less time than filters that fill no vector")
        return sliced, [graph.value(x).args[1].fields[0], *operands]

    def rewrite(self, graph: Graph, var: Var, found: tuple[Conv3d, list[Expr]]) -> None:
        op, operands = found
        graph.replace(var, graph.call_function(op.workload(), op.label, operands, var))
