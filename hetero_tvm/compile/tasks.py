"""Tuning tasks of an optimized module: its distinct kernels."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hetero_tvm.host.constants import array_of
from hetero_tvm.host.tvm import PrimFunc, SBlock, relax, tvm, tvm_ffi
from hetero_tvm.relax_passes.rewriting.fused import contract_of, is_call_tir, is_ready
from hetero_tvm.relax_passes.rewriting.graph import is_constant
from hetero_tvm.schedules.sampled import SampledSpace
from hetero_tvm.schedules.task import Task, task_key
from hetero_tvm.targets.base import Target


def tasks_of(
    module: Any,
    sources: Mapping[str, tuple[str, ...]],
    target: Target,
    spaces: Sequence[SampledSpace] = (),
) -> tuple[Task, ...]:
    """The distinct kernels that ``main`` calls, in the order of their first call.

    ``spaces`` are the user's own, for kernels that no operator contract covers.
    """
    own = {kernel: space for space in spaces for kernel in space.kernels}
    calls: dict[str, list[tuple[str, ...]]] = {}
    functions: dict[str, tuple[str, Any]] = {}
    keys: dict[Any, str] = {}
    for block in module["main"].body.blocks:
        for binding in block.bindings:
            if not is_call_tir(binding.value) or is_ready(module[binding.value.args[0]]):
                continue
            global_var = binding.value.args[0]
            if global_var not in keys:
                keys[global_var] = task_key(module[global_var])
            key = keys[global_var]
            functions.setdefault(key, (global_var.name_hint, module[global_var]))
            calls.setdefault(key, []).append(sources.get(binding.var.name, (binding.var.name,)))
    tasks, taken = [], set()
    for key, (name, function) in functions.items():
        op = contract_of(function)
        flops, nbytes = (op.flops, op.nbytes) if op is not None else _cost(function)
        sampled = own.get(name) if op is None else None
        if sampled is None:
            op = op or target.contract_of(function, name, flops)
        space = target.space_for(op)[0] if op is not None else None
        name = op.label if op is not None else name
        while name in taken:
            name += "_b"
        taken.add(name)
        made = Task(key, name, op, function, space, tuple(calls[key]), flops, nbytes, sampled)
        if op is not None and space is not None:
            made = replace(made, arithmetic=space.arithmetic(op, target.machine))
        tasks.append(made)
    return tuple(tasks)


def program_key(module: Any) -> str:
    """Digest of what ``main`` computes; names and the order of independent calls do not count.

    Equal kernels are not enough: ``x - y`` and ``y - x`` have the same one, and so have products with
    different weights.
    """
    main = module["main"]
    kernels: dict[Any, str] = {}
    known: dict[Any, str] = {parameter: f"%{i}" for i, parameter in enumerate(main.params)}

    def text(value: Any) -> str:
        if isinstance(value, relax.Var):
            return known[value]
        if isinstance(value, tvm.ir.GlobalVar):
            function = module[value]
            if value not in kernels:
                kernels[value] = task_key(function) if isinstance(function, PrimFunc) else value.name_hint
            return kernels[value]
        if is_constant(value):
            array = array_of(value.value)
            return f"{value.value.dtype}{array.shape}{hashlib.sha256(array.tobytes()).hexdigest()}"
        if isinstance(value, relax.Tuple):
            return f"({','.join(map(text, value.fields))})"
        if isinstance(value, relax.TupleGetItem):
            return f"{text(value.tuple_value)}.{value.index}"
        if isinstance(value, tvm.ir.Call):
            called = getattr(value.op, "name", None) or text(value.op)
            return f"{called}({','.join(map(text, value.args))}){value.attrs}{value.ty}"
        return str(value)

    for block in main.body.blocks:
        for binding in block.bindings:
            known[binding.var] = _digest(text(binding.value))
    return _digest(text(main.body.body))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _cost(function: Any) -> tuple[int, int]:
    """FLOPs by TVM's own estimate; bytes of all arguments once, of a table no more than is looked up."""
    module = tvm.IRModule({"main": function.with_attr("global_symbol", "main")})
    flops = int(tvm.s_tir.analysis.estimate_tir_flops(module))
    touched = _touched(function)
    nbytes = 0
    for buffer in function.params:
        if hasattr(buffer, "shape") and all(isinstance(e, int | tvm.tirx.IntImm) for e in buffer.shape):
            elements = math.prod(int(e) for e in buffer.shape)
            nbytes += min(elements, touched.get(buffer, elements)) * np.dtype(str(buffer.dtype)).itemsize
    return flops, nbytes


def _touched(function: Any) -> dict[Any, int | float]:
    """Most elements of each buffer that the rounds of all blocks read; none where a part is open."""
    found: dict[Any, int | float] = {}

    def note(block: SBlock) -> SBlock:
        rounds = _product(axis.dom.extent for axis in block.iter_vars)
        for region in block.reads if block.iter_vars else ():
            part = rounds * _product(each.extent for each in region.region)
            found[region.source] = found.get(region.source, 0) + part
        return block

    tvm_ffi.structural_map(function.body, (SBlock, note), order="post")
    return found


def _product(extents: Iterable[Any]) -> int | float:
    return math.prod(int(e) if isinstance(e, tvm.tirx.IntImm) else math.inf for e in extents)
