"""ONNX front end: file or ModelProto -> :class:`ImportedModel`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
from onnx import helper

from hetero_tvm.errors import HeteroTVMError, ModelError, UsageError
from hetero_tvm.frontend.limits import check_size, current_limits
from hetero_tvm.frontend.onnx.bodies.resize import BY_PLACES
from hetero_tvm.frontend.onnx.check import check_imports, check_scales
from hetero_tvm.frontend.onnx.clean import clean
from hetero_tvm.frontend.onnx.counting import counts_of
from hetero_tvm.frontend.onnx.ends import plain_ends
from hetero_tvm.frontend.onnx.graph.bags import bags_at_once
from hetero_tvm.frontend.onnx.graph.detach import detached
from hetero_tvm.frontend.onnx.graph.draws import warn_of_draws
from hetero_tvm.frontend.onnx.graph.spelling import spelled_out
from hetero_tvm.frontend.onnx.graph.texts import numbered_texts
from hetero_tvm.frontend.onnx.load import load_stored, tensors
from hetero_tvm.frontend.onnx.operators.common import fixed_extents
from hetero_tvm.frontend.onnx.relax import source_names, supported_operators, to_relax
from hetero_tvm.frontend.onnx.shapes import declared_dimensions
from hetero_tvm.frontend.onnx.values import fix_values
from hetero_tvm.frontend.onnx.widen import stored_type
from hetero_tvm.frontend.signature import ImportedModel, Signature, TensorSpec
from hetero_tvm.frontend.stored import StoredModel
from hetero_tvm.host import mapped
from hetero_tvm.host.tvm import IRModule, relax


def import_onnx(
    source: str | Path | onnx.ModelProto | StoredModel,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    batch: int | None = None,
    sequence: int | None = None,
    values: Mapping[str, Any] | None = None,
    name: str | None = None,
    least: int = 1,
    open_sizes: bool = False,
    by_places: Collection[str] = (),
) -> ImportedModel:
    """Import an ONNX model with fixed shapes.

    Parameters
    ----------
    source : path of a file (external data beside it is loaded), or a model in memory, which is not changed.
    shapes : dimensions by input name; needed for inputs that the file leaves symbolic.  A symbol
        fixed in one input is fixed in all.
    batch, sequence : sizes of symbols with such names (``batch_size``, ``seq_len``, ...).
    values : numbers or arrays by input name, of inputs that never change: they become constants.
    name : name of the result; by default the stem of the file or the name of the graph.
    least : size below which a given dimension is refused.
    open_sizes : whether the model is one of several, of which each has other sizes.
    by_places : names of Resize nodes that have no plain form at others of these sizes.

    Raises
    ------
    ShapeError : shapes are missing or contradictory (all are listed).
    UnsupportedOperatorError : operators without importer (all are listed).
    ModelError : the file or the graph is broken, or TVM cannot convert a node.
    UsageError : ``values`` do not fit the inputs.
    """
    if isinstance(source, onnx.ModelProto):
        default = source.graph.name or "model"
    elif isinstance(source, StoredModel):
        default = source.proto.graph.name or "model"
    elif isinstance(source, str | Path):
        default = Path(source).stem
    else:
        raise UsageError(f"An ONNX model is a path or an onnx.ModelProto, not {type(source).__name__}.")
    try:
        if isinstance(source, onnx.ModelProto):
            check_size(source, current_limits())
            _refuse_external(source)
            stored = detached(source)
        elif isinstance(source, StoredModel):
            stored = source
        else:
            stored = load_stored(Path(source))
        stored = dataclasses.replace(stored, proto=numbered_texts(stored.proto))
        check_imports(stored.proto)
        check_scales(stored)
        stored = dataclasses.replace(
            stored, proto=fix_values(plain_ends(bags_at_once(spelled_out(stored.proto))), values or {})
        )
        cleaned = clean(
            _marked(stored, by_places) if by_places else stored,
            supported_operators(),
            shapes or {},
            batch=batch,
            sequence=sequence,
            least=least,
            open_sizes=open_sizes,
        )
        module = to_relax(cleaned)
        signature = _signature(cleaned.proto, module)
        mapped.settle()
    except HeteroTVMError:
        raise
    except (MemoryError, RecursionError) as error:
        raise ModelError(f"The model is too large or too deeply nested: {type(error).__name__}.") from error
    except Exception as error:  # files are hostile in more ways than we know by name
        raise ModelError(f"The model cannot be imported. {type(error).__name__}: {error}") from error
    warn_of_draws(stored.proto)
    return ImportedModel(
        module=module,
        signature=signature,
        clean=cleaned,
        name=name or default,
        stored=stored_type(stored.proto),
        source=stored,
        values=dict(values or {}),
        weight_bytes=sum(_tensor_bytes(t) for t in cleaned.proto.graph.initializer),
    )


def _marked(stored: StoredModel, by_places: Collection[str]) -> StoredModel:
    """The model with notes at the Resize nodes of these names."""
    proto = onnx.ModelProto()
    proto.CopyFrom(stored.proto)
    for node in proto.graph.node:
        if node.op_type == "Resize" and node.name in by_places:
            node.doc_string = BY_PLACES
    return dataclasses.replace(stored, proto=proto)


def open_onnx(
    source: str | Path | onnx.ModelProto,
    *,
    batch: int | None = None,
    sequence: int | None = None,
    values: Mapping[str, Any] | None = None,
    by_places: Collection[str] = (),
) -> tuple[dict[str, list[int | str | None] | None], Callable[[Any], ImportedModel]]:
    """Read a model once, to import it at several sizes; arguments as :func:`import_onnx`.

    What ``by_places`` has at the time of an import counts for it.

    Returns
    -------
    The dimensions of its inputs as the file declares them, and what imports it with given shapes.
    """
    if isinstance(source, onnx.ModelProto):
        check_size(source, current_limits())
        _refuse_external(source)
        stored, name = detached(source), source.graph.name or "model"
    else:
        stored, name = load_stored(Path(source)), Path(source).stem
    stored = dataclasses.replace(stored, proto=numbered_texts(stored.proto))

    def load(shapes: Mapping[str, Sequence[int]]) -> ImportedModel:
        return import_onnx(
            stored,
            shapes=shapes,
            batch=batch,
            sequence=sequence,
            name=name,
            values=values,
            least=0,
            open_sizes=True,
            by_places=by_places,
        )

    inputs = [value for value in stored.proto.graph.input if value.name not in (values or {})]
    return declared_dimensions(inputs), load


def _refuse_external(model: onnx.ModelProto) -> None:
    external = [t.name for t in tensors(model) if t.data_location == onnx.TensorProto.EXTERNAL]
    if external:
        raise ModelError(
            f"The model in memory refers to external data for {len(external)} tensors.",
            hint="Give the path of the file, or load it with onnx.load(path).",
        )


def _tensor_bytes(tensor: onnx.TensorProto) -> int:
    elements = 1
    for dim in tensor.dims:
        elements *= dim
    return elements * helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize


def _signature(model: onnx.ModelProto, module: IRModule) -> Signature:
    """Read inputs and outputs from the Relax function; refuses a value inside without a fixed shape."""
    main = module["main"]
    for block in main.body.blocks:
        for binding in block.bindings:
            ty = binding.var.ty
            is_fixed_shape = isinstance(ty, relax.ShapeType) and fixed_extents(ty.values) is not None
            if _specs(ty) is None and not is_fixed_shape:
                raise ModelError(
                    f"The shape of {ty} at node {source_names(binding.var)!r} is not known.",
                    hint="Shapes that depend on values are not supported; fix inputs with --shape.",
                )
    result = _specs(main.ret_ty)
    if result is None or len(result) != len(model.graph.output):
        raise ModelError(f"The outputs have no fixed shapes: {main.ret_ty}.")
    inputs = [_specs(parameter.ty)[0] for parameter in main.params]
    counts = counts_of(model)
    return Signature(
        tuple(TensorSpec(v.name, *spec) for v, spec in zip(model.graph.input, inputs, strict=True)),
        tuple(
            TensorSpec(v.name, *spec, counts.get(v.name, ()))
            for v, spec in zip(model.graph.output, result, strict=True)
        ),
    )


def _specs(ty: Any) -> list[tuple[tuple[int, ...], str]] | None:
    """(shape, dtype) of a tensor, or of each field of a tuple; None when one is unknown."""
    if isinstance(ty, relax.TupleType):
        fields = [_specs(field) for field in ty.fields]
        return None if any(f is None for f in fields) else [spec for field in fields for spec in field]
    if not isinstance(ty, relax.TensorType) or not isinstance(ty.shape, relax.ShapeExpr):
        return None
    dims = fixed_extents(ty.shape.values)
    return None if dims is None else [(dims, str(ty.dtype))]
