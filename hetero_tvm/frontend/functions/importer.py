"""Import of operators written for TVM: TensorIR functions, tensor expressions, Relax functions and modules.

They become an :class:`ImportedModel` like any model, so that one road optimizes, tunes, builds and checks
them.  A TensorIR function is neither taken apart nor fused with its neighbours: it is one kernel of the
result, which may have a design space of its own.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx import helper

from hetero_tvm.errors import ModelError, UsageError, last_line
from hetero_tvm.frontend.functions.run import UnscheduledProgram
from hetero_tvm.frontend.signature import RESERVED, ImportedModel
from hetero_tvm.frontend.stored import StoredModel
from hetero_tvm.host.tvm import Call, IRModule, PrimFunc, SBlock, SBlockRealize, relax, te, tirx, tvm, tvm_ffi
from hetero_tvm.runtime.signature import Signature, TensorSpec

_OPAQUE = {"op_pattern": 8}
"""Attribute of a kernel that is left alone by the fusion of generic kernels."""
_SPATIAL = 0
"""TVM's ``IterVar.DataPar``."""


def import_function(source: Any, *, name: str | None = None) -> ImportedModel:
    """Import an operator.

    Parameters
    ----------
    source : a ``tvm.tirx.PrimFunc`` whose last parameters are its results; a list of ``te`` tensors, inputs
        first; a Relax function; a module with a Relax ``main``, or with one PrimFunc; or a dictionary of
        several such implementations by name, of which the first says what is right.
    name : of the result and its library; by default the function's own.

    Raises
    ------
    UsageError : ``source`` is none of these.
    ModelError : an open shape, a parameter that is read and written, or results before inputs (all are
        listed).
    """
    if isinstance(source, Mapping):
        return _several(source, name)
    if isinstance(source, Sequence) and source and all(isinstance(t, te.Tensor) for t in source):
        source = _of_expressions(source)
    if isinstance(source, tvm.IRModule):
        kernels = [v for v, f in source.functions.items() if isinstance(f, PrimFunc)]
        mains = [v.name_hint for v, f in source.functions.items() if isinstance(f, relax.Function)]
        if "main" in mains:
            return _finish(source, name or "function")
        if len(kernels) != 1 or mains:
            raise UsageError(
                f"this module has no Relax function main, and {len(kernels)} TensorIR functions",
                hint="give it a Relax main, or one TensorIR function alone",
            )
        name, source = name or kernels[0].name_hint, source[kernels[0]]
    if isinstance(source, PrimFunc):
        symbol = str((source.attrs or {}).get("global_symbol", "main"))
        symbol = name or "kernel" if symbol == "main" else symbol  # what TVM calls a function without a name
        return _finish(_around(source, symbol), name or symbol)
    if isinstance(source, relax.Function):
        module = tvm.IRModule({"main": source.with_attr("global_symbol", "main")})
        return _finish(module, name or "function")
    raise UsageError(
        "an operator is a PrimFunc, a list of te tensors (inputs, then results), a Relax function or "
        f"a module, not {type(source).__module__}.{type(source).__qualname__}"
    )


def _several(sources: Mapping[str, Any], name: str | None) -> ImportedModel:
    """One operator of several implementations, with the ends and the judge of the first."""
    if not sources or not all(isinstance(key, str) and key for key in sources):
        raise UsageError("implementations are a dictionary of operators by name, and there is one at least")
    if taken := [f"{key!r} is {RESERVED[key]}" for key in sources if key in RESERVED]:
        raise UsageError("an implementation needs another name: " + "; ".join(taken))
    if nested := [repr(key) for key, source in sources.items() if isinstance(source, Mapping)]:
        raise UsageError(
            f"an implementation is one operator, and {', '.join(nested)} is a dictionary of several",
            hint="list them all in one dictionary",
        )
    made = {key: import_function(source, name=name) for key, source in sources.items()}
    first, *others = (replace(model, implementation=key) for key, model in made.items())

    def ends(model: ImportedModel) -> list[str]:
        sides = (("input", model.signature.inputs), ("output", model.signature.outputs))
        return [f"{side} {i}: {s.dtype}{list(s.shape)}" for side, specs in sides for i, s in enumerate(specs)]

    known, problems = ends(first), []
    for other in others:
        found = ends(other)
        problems += [f"{other.implementation} has {line}" for line in found if line not in known]
        problems += [f"{other.implementation} has no {line}" for line in known if line not in found]
    if problems:
        raise ModelError(
            f"these are no implementations of one operator: they differ from {first.implementation}.",
            problems=problems,
            hint="all take and give tensors of the same shapes and types, in one order",
        )
    shared = {"signature": first.signature, "clean": first.clean, "original": first.original}
    return replace(first, alternatives=tuple(replace(o, name=first.name, **shared) for o in others))


def _of_expressions(tensors: Sequence[Any]) -> PrimFunc:
    """TensorIR of tensor expressions."""
    if missing := _unlisted(tensors):
        raise ModelError(
            "the list of tensors is not complete.",
            problems=[f"placeholder {name} is read, and not in the list" for name in missing],
            hint="list the placeholders first, then the results",
        )
    try:
        return te.create_prim_func(list(tensors))
    except Exception as error:
        raise ModelError(
            f"TVM makes no function of these tensors: {last_line(error)}",
            hint="list the placeholders first, then the results",
        ) from error


def _unlisted(tensors: Sequence[Any]) -> list[str]:
    """Names of the placeholders that tensor expressions read and that are not among them."""
    listed = {tensor.op: None for tensor in tensors}
    waiting, seen = list(listed), dict(listed)
    missing: list[str] = []
    while waiting:
        op = waiting.pop()
        if isinstance(op, te.PlaceholderOp) and op not in listed:
            missing.append(op.name)
        new = {tensor.op: None for tensor in op.input_tensors if tensor.op not in seen}
        seen.update(new)
        waiting += new
    return sorted(missing)


def _around(function: PrimFunc, symbol: str) -> IRModule:
    """Relax module that calls one TensorIR function on its inputs."""
    written = _written(function)
    problems, specs, seen_result = [], [], False
    for parameter in function.params:
        extents = getattr(parameter, "shape", None)
        if extents is None:
            problems.append(f"parameter {parameter.name} is no buffer")
            continue
        if not all(isinstance(extent, int | tirx.IntImm) for extent in extents):
            problems.append(f"{parameter.name} has the open shape {list(extents)}")
            continue
        role = written.get(parameter.name)
        seen_result |= role is not None
        if role == "read and written":
            problems.append(f"{parameter.name} is read before it is written: it is input and result at once")
        elif seen_result and role is None:
            problems.append(f"{parameter.name} is an input after a result")
        shape = tuple(int(extent) for extent in extents)
        specs.append((parameter.name, shape, str(parameter.dtype), role is not None))
    if not problems and not seen_result:
        problems.append("no parameter is written: there is no result")
    elif not isinstance(function.body, SBlockRealize):
        problems.append("its body has no block: TVM schedules blocks (with T.sblock(...))")
    if problems:
        raise ModelError(
            f"{symbol} cannot be compiled as an operator.",
            problems=problems,
            hint="parameters are buffers of fixed shapes: the inputs, then the results",
        )
    clean = function.without_attr("global_symbol") if "global_symbol" in (function.attrs or {}) else function
    builder = relax.BlockBuilder()
    global_var = builder.add_func(clean.with_attr({**_OPAQUE, "tirx.noalias": True}), _identifier(symbol))
    inputs = [relax.Var(n, relax.TensorType(s, d)) for n, s, d, result in specs if not result]
    outputs = [relax.TensorType(s, d) for _, s, d, result in specs if result]
    with builder.function("main", inputs):
        called = relax.call_tir(global_var, inputs, outputs[0] if len(outputs) == 1 else outputs)
        builder.emit_func_output(builder.emit(called, name_hint=symbol))
    module = builder.get()
    names = [n for n, _, _, result in specs if result]
    return module.with_attr("hetero.outputs", names)


def _in_place(block: Any) -> bool:
    """Whether a block of one statement, without a reduction, changes elements that others have given it."""
    if block.init is not None or any(one.iter_type != _SPATIAL for one in block.iter_vars):
        return False
    return isinstance(block.body, tirx.BufferStore) and any(
        region.source.same_as(block.body.buffer) for region in block.reads
    )


def _written(function: PrimFunc) -> dict[str, str]:
    """Roles of the parameters that a function writes: ``written``, or ``read and written``."""
    stored: set[str] = set()
    read_first: set[str] = set()

    def visit_store(store: Any) -> None:
        stored.add(store.buffer.name)

    def visit_block(block: Any) -> None:
        # A reduction's own update reads what its `init` has written.
        own = set() if _in_place(block) else {region.source.name for region in block.writes}
        read_first.update({region.source.name for region in block.reads} - own - stored)

    callbacks = [(tirx.BufferStore, visit_store), (SBlock, visit_block)]
    tvm_ffi.structural_walk(function.body, callbacks, order="pre")
    names = {parameter.name for parameter in function.params}
    return {name: "read and written" if name in read_first else "written" for name in stored & names}


def _identifier(name: str) -> str:
    return re.sub(r"\W", "_", name)


def _finish(module: IRModule, name: str) -> ImportedModel:
    """The model of a Relax module, with its signature."""
    main = module["main"]
    named = (module.attrs or {}).get("hetero.outputs")
    if named is not None:
        module = module.without_attr("hetero.outputs")
    if not relax.analysis.check_well_formed(module):
        raise ModelError(f"{name} is not a well-formed Relax module.")
    if missing := _missing_functions(module):
        raise ModelError(
            f"{name} cannot be compiled as an operator.",
            problems=[f"it calls {function}, which no library of this process has" for function in missing],
            hint="load what has the C functions first: ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)",
        )
    problems: list[str] = []
    inputs = [_spec(p.name, p.ty, problems) for p in main.params]
    result = main.ret_ty
    fields = list(result.fields) if isinstance(result, relax.TupleType) else [result]
    names = list(named) if named is not None else _output_names(len(fields), [p.name for p in main.params])
    outputs = [_spec(str(n), field, problems) for n, field in zip(names, fields, strict=True)]
    if problems:
        raise ModelError(f"{name} cannot be compiled as an operator.", problems=problems)
    signature = Signature(tuple(inputs), tuple(outputs))
    original = UnscheduledProgram(module, signature)
    for global_var, function in module.functions.items():
        if isinstance(function, PrimFunc):
            module.update_func(global_var, function.with_attr(_OPAQUE))
    try:
        module = relax.transform.CanonicalizeBindings()(relax.transform.ToNonDataflow()(module))
        module = relax.transform.ConvertToDataflow(1)(relax.transform.Normalize()(module))
    except Exception as error:
        raise ModelError(f"{name}: TVM cannot read this function: {last_line(error)}") from error
    return ImportedModel(module, signature, _ends(signature), _identifier(name), 0, original)


def _missing_functions(module: IRModule) -> list[str]:
    """C functions that kernels call and that nothing has that is loaded: TVM's own compiler, which is the
    judge, would end the process.  What comes with the kernel as code (``pragma_import_...``) is known.
    """
    process, missing, own = ctypes.CDLL(None), [], []

    def visit(call: Any) -> None:
        if getattr(call.op, "name", "") in ("tirx.call_extern", "tirx.call_pure_extern"):
            function = getattr(call.args[0], "value", None)
            if isinstance(function, str) and not hasattr(process, function):
                missing.append(function)

    def visit_attribute(node: Any) -> None:
        own.extend([node] if str(node.attr_key).startswith("pragma_import_") else [])

    def visit_loop(loop: Any) -> None:
        own.extend(key for key in loop.annotations or {} if str(key).startswith("pragma_import_"))

    callbacks = [(Call, visit), (tirx.AttrStmt, visit_attribute), (tirx.For, visit_loop)]
    for function in module.functions.values():
        if isinstance(function, PrimFunc):
            tvm_ffi.structural_walk(function.body, callbacks, order="pre")
    return [] if own else list(dict.fromkeys(missing))


def _output_names(count: int, taken: Collection[str]) -> list[str]:
    plain = ["output"] if count == 1 else [f"output_{i}" for i in range(count)]
    return [name + "_" if name in taken else name for name in plain]


def _spec(name: str, found: Any, problems: list[str]) -> TensorSpec:
    """Name, shape and dtype of a tensor; what is no tensor of a fixed shape is added to ``problems``."""
    shape = getattr(found, "shape", None)
    if not isinstance(found, relax.TensorType) or shape is None or not hasattr(shape, "values"):
        problems.append(f"{name} is {found}, not a tensor of a fixed shape")
        return TensorSpec(name, (), "float32")
    if not all(isinstance(extent, int | tirx.IntImm) for extent in shape.values):
        problems.append(f"{name} has the open shape {list(shape.values)}")
        return TensorSpec(name, (), "float32")
    return TensorSpec(name, tuple(int(extent) for extent in shape.values), str(found.dtype))


def _ends(signature: Signature) -> StoredModel:
    """ONNX model with the ends of an operator and nothing between them: inputs are drawn from it."""

    def info(spec: TensorSpec) -> onnx.ValueInfoProto:
        dtype = helper.np_dtype_to_tensor_dtype(np.dtype(spec.dtype))
        return helper.make_tensor_value_info(spec.name, dtype, spec.shape)

    ends = [list(map(info, specs)) for specs in (signature.inputs, signature.outputs)]
    graph = helper.make_graph([], "ends", *ends)
    return StoredModel(helper.make_model(graph), {})
