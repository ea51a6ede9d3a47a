"""Graphs of fixed shapes made functions of tensors: export, cache, and the verbs of the API."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.export import ExportedProgram

from hetero_tvm import api
from hetero_tvm.errors import AccuracyError
from hetero_tvm.frontend.signature import Original
from hetero_tvm.frontend.torch.arrays import array_of
from hetero_tvm.runtime.library import Library
from hetero_tvm.runtime.opening import load
from hetero_tvm.torch.cache import GraphCache
from hetero_tvm.torch.call import TensorCall
from hetero_tvm.torch.complexes import ComplexCall, with_real_ends
from hetero_tvm.torch.examine import Findings
from hetero_tvm.torch.options import Options
from hetero_tvm.torch.program import exported, key_of
from hetero_tvm.torch.reference import TracedGraph
from hetero_tvm.torch.rewrites.copies import returning

_INTEGERS = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)


class PassedThrough:
    """A graph that computes no tensor: it gives arguments and numbers back."""

    library: Library | None = None

    def __init__(self, outputs: Sequence[tuple[str, Any]]):
        self._outputs = tuple(outputs)

    def __call__(self, arguments: Sequence[Any]) -> list[Any]:
        """Outputs of the graph for ``arguments``."""
        return [arguments[place] if kind == "argument" else place for kind, place in self._outputs]


def compile_graph(
    gm: torch.fx.GraphModule,
    arguments: Sequence[Any],
    bound: Mapping[int, Any],
    findings: Findings,
    options: Options,
    given: Sequence[Any] | None = None,
    ordered: int | None = None,
) -> TensorCall | ComplexCall | PassedThrough:
    """Compile a pure graph, or find it in the cache.

    Parameters
    ----------
    arguments : tensors like those that it will be called with (their values do not count), and numbers.
    bound : arguments whose values become part of the library, by number.
    findings : what :func:`hetero_tvm.torch.examine.examine` says of it.
    given : arguments of a call, which the check takes where drawn values mean nothing: places and swaps that
        a forward graph found, variances.
    ordered : number of first outputs that lie in memory as PyTorch's do (programs view them); None for all.

    Raises
    ------
    HeteroTVMError : it cannot be compiled; lists the reasons.
    """
    if not findings.results:
        return PassedThrough(findings.outputs)
    started = time.perf_counter()
    bound = {**{i: a for i, a in enumerate(arguments) if not isinstance(a, torch.Tensor)}, **bound}
    orders = {
        place: order
        for place, (index, order) in enumerate(zip(findings.results, findings.orders, strict=True))
        if order and (ordered is None or index < ordered) and place not in findings.complexes
    }
    plain = returning(gm, findings.results, orders)
    free = [index for index in range(len(arguments)) if index not in bound]
    complexes = [i for i in free if arguments[i].is_complex()], findings.complexes
    if any(complexes):
        plain, arguments = with_real_ends(plain, arguments, *complexes)
    with unset_fake_temporarily(), torch._guards.tracing(None):
        program = exported(plain, arguments, bound)
        names = dict(zip(program.graph_signature.user_inputs, free, strict=True))
        judge = TracedGraph(plain, program, names, bound)
        sample = {name: given[index] for name, index in names.items()} if given else {}
        library, was_there = compiled(program, options, judge, sample)
    inputs = [names[spec.name] for spec in library.signature.inputs]
    options.tell(
        event="cached" if was_there else "compiled",
        library=str(library.path),
        nodes=len(gm.graph.nodes),
        inputs=len(inputs),
        bound=len(bound),
        seconds=time.perf_counter() - started,
    )
    call = TensorCall(library, inputs, findings.outputs, orders)
    return ComplexCall(call, *complexes, findings.outputs) if any(complexes) else call


def compiled(
    program: ExportedProgram,
    options: Options,
    judge: Original | None = None,
    sample: Mapping[str, torch.Tensor] | None = None,
) -> tuple[Library, bool]:
    """The library of a program, and whether it was in the cache; the rest is as :func:`build` takes it.

    Raises
    ------
    HeteroTVMError : it cannot be compiled; lists the reasons.
    """

    def make(path: Path) -> None:
        build(program, options, judge, sample).export(path)

    with torch.inference_mode(False), torch.no_grad():
        return GraphCache(options.folder, options.bound).get(key_of(program, options), make, load)


def build(
    program: ExportedProgram,
    options: Options,
    judge: Original | None = None,
    sample: Mapping[str, torch.Tensor] | None = None,
) -> api.BuiltModel:
    """Compile a program, and check it where the options say so: by ``judge``, or by the program itself.

    ``sample`` : values of its inputs, which the check takes where drawn ones mean nothing.
    """
    model = api.import_model(program)
    if judge is not None:
        model = dataclasses.replace(model, original=judge)
    optimized = api.optimize_model(model, options.target, precision=options.precision)
    built = api.build_model(optimized, logs=options.logs)
    if options.check and built.unrunnable is None:
        _check(built, sample or {})
    return built


def _check(built: api.BuiltModel, sample: Mapping[str, torch.Tensor]) -> None:
    """Compare with the reference, on drawn values or those of a call.

    ``sample`` : values of a call by input name.  They are taken where some inputs are integers, and where
        drawn ones lead to NaN or infinities in the reference (roots and quotients of statistics, in backward
        graphs), which compilers may place elsewhere.

    Raises
    ------
    AccuracyError : the numbers are beyond the tolerance.
    """
    names = [spec.name for spec in built.optimized.signature.inputs]
    if any(sample.get(name) is None for name in names):
        built.check()
        return
    if not any(sample[name].dtype in _INTEGERS for name in names):
        try:
            built.check()
            return
        except AccuracyError:
            if built.accuracy is None or any(o.finite and not o.ok for o in built.accuracy.outputs):
                raise
    built.check(inputs={name: array_of(torch, sample[name]) for name in names})
