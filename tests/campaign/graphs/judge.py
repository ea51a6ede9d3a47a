"""The verdict on a model: ours against ONNX Runtime and the ONNX reference evaluator, on the user's own file.

An output agrees with a reference when dtype, shape, and the places of NaN and infinity are the same and each
element lies within the tolerance of its dtype; where the references disagree on what is NaN or infinite,
each element may follow one of them.  Where ours agrees with neither, the graph may be badly
conditioned: the reference evaluator runs it again with a rounding error added to every value, and elements
that these errors move are given as much room.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from hetero_tvm.errors import BuildError, HeteroTVMError
from hetero_tvm.frontend.stored import StoredModel
from hetero_tvm.reference.running import run_double
from tests.campaign.graphs.compute import EVALUATOR, MENDED, RUNTIME, compute
from tests.campaign.graphs.settings import CPU, TOLERANCES, Noise, Setting
from tests.campaign.graphs.values import Value, name_of, numpy_type

_NOISE_RUNS = 6

PASSED, REFUSED, WRONG, BROKEN, UNJUDGED = "passed", "refused", "wrong", "broken", "unjudged"

Arrays = Sequence[np.ndarray]
Change = Callable[..., Any]


def _as_it_is(value: Any, name: str, moved: bool = False) -> Any:
    return value


@dataclass(frozen=True)
class Verdict:
    """How a case ends; ``note`` says which references disagreed with each other, or could not run it."""

    kind: str
    reason: str = ""
    note: str = ""


def failed_inside(error: Exception) -> bool:
    """Whether a pass or a code generator failed, which is no refusal, however well its error is wrapped."""
    return isinstance(error, BuildError) and error.message.startswith(("optimizing ", "compiling "))


def failure(error: Exception) -> Verdict:
    """The verdict on a model that is refused, or fails in another way."""
    text = " ".join(str(error).split())
    if isinstance(error, HeteroTVMError):
        return Verdict(BROKEN if failed_inside(error) else REFUSED, text[:500])
    return Verdict(BROKEN, f"{type(error).__name__}: {text[-400:]}")


def verdict(
    model: onnx.ModelProto,
    draws: Sequence[Mapping[str, np.ndarray]],
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    setting: Setting = CPU,
) -> Verdict:
    """Compile, run on every draw, and compare."""
    from hetero_tvm.api import import_model

    try:
        imported = import_model(model, shapes=shapes or {})
        built = setting.built(imported)
        names = [spec.name for spec in imported.signature.inputs]
        ours = [built.run({name: draw[name] for name in names}) for draw in draws]
    except Exception as error:
        return failure(error)
    note = ""
    for number, (draw, results) in enumerate(zip(draws, ours, strict=True)):
        fault, said = compared(model, draw, results, setting)
        note = note or said
        if fault == UNJUDGED:
            return Verdict(UNJUDGED, said)
        if fault:
            return Verdict(WRONG, f"draw {number}: {fault}", note)
    return Verdict(PASSED, note=note)


def compared(
    model: onnx.ModelProto,
    draw: Mapping[str, np.ndarray],
    ours: Arrays,
    setting: Setting = CPU,
) -> tuple[str | None, str]:
    """What is wrong with results, and a note on the references."""
    as_ = setting.dtypes_as(model)
    theirs: dict[str, Arrays] = {}
    problems = []
    for name, run in (("onnxruntime", by_onnxruntime), ("reference", by_reference)):
        try:
            theirs[name] = run(model, draw)
        except Exception as error:
            problems.append(
                f"{name} cannot run it: {type(error).__name__}: {' '.join(str(error).split())[:160]}"
            )
    if not theirs:
        return UNJUDGED, "; ".join(problems)
    if "onnxruntime" in theirs and any(node.op_type == "Loop" for node in model.graph.node):
        theirs["onnxruntime"] = list(map(_as_no_rows, theirs["onnxruntime"], ours))
    note = "; ".join(problems)
    if len(theirs) == 2:
        for index, (a, b) in enumerate(zip(*theirs.values(), strict=True)):
            if fault := difference(a, b, as_=as_):
                note = f"references disagree on output {index}: {fault}"
    spreads: list[np.ndarray] | None = None
    for index in range(len(ours)):
        faults = {name: difference(ours[index], t[index], as_=as_) for name, t in theirs.items()}
        if not all(faults.values()):
            continue
        if len(theirs) > 1 and not difference(ours[index], _nearest(ours[index], theirs, index), as_=as_):
            continue
        if "float64" not in theirs:
            with contextlib.suppress(Exception):
                theirs["float64"] = _in_double(model, draw)
        if "float64" in theirs and not difference(ours[index], theirs["float64"][index], as_=as_):
            continue
        if spreads is None:
            spreads = _spreads(model, draw, "reference" in theirs, setting)
        room = spreads[index] * setting.factor if spreads else None
        if setting.rows_become_nan and any(_special(array).any() for array in draw.values()):
            room = np.where(_special(ours[index]) == 1, np.nan, 0.0 if room is None else room)
        faults = {name: difference(ours[index], t[index], room, as_) for name, t in theirs.items()}
        if all(faults.values()):
            name = model.graph.output[index].name
            return f"output {index} ({name}): " + "; ".join(f"{n}: {f}" for n, f in faults.items()), note
    return None, note


def _as_no_rows(theirs: np.ndarray, ours: np.ndarray) -> np.ndarray:
    """Rows of a Loop of no rounds, of which ONNX Runtime gives each size that the body leaves open as 0."""
    theirs, ours = np.asarray(theirs), np.asarray(ours)
    if theirs.ndim != ours.ndim or not theirs.ndim or theirs.shape[0] or ours.shape[0]:
        return theirs
    known = all(size in (0, mine) for size, mine in zip(theirs.shape, ours.shape, strict=True))
    return theirs.reshape(ours.shape) if known else theirs


def _special(array: np.ndarray) -> np.ndarray:
    """0 for numbers, and another number for each of NaN, infinity and its negative."""
    wide = np.asarray(array, np.float64)
    return np.select([np.isnan(wide), wide == np.inf, wide == -np.inf], [1, 2, 3], 0)


def _nearest(ours: np.ndarray, theirs: Mapping[str, Arrays], index: int) -> np.ndarray:
    """The first reference, with the other one's elements where that alone agrees on NaN or infinity."""
    first, second = (np.asarray(arrays[index]) for arrays in list(theirs.values())[:2])
    if not ours.shape == first.shape == second.shape or first.dtype.name not in TOLERANCES:
        return first
    kinds = [_special(array) for array in (ours, first, second)]
    return np.where((kinds[0] != kinds[1]) & (kinds[0] == kinds[2]), second, first)


def difference(
    ours: np.ndarray,
    theirs: np.ndarray,
    room: np.ndarray | None = None,
    as_: Mapping[str, str] = MappingProxyType({}),
) -> str | None:
    """What separates two arrays; None when they agree.

    ``room`` : errors that conditioning allows besides; NaN where anything can come out.
    ``as_`` : dtypes that are compared as others are.
    """
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    if ours.shape != theirs.shape:
        return f"shape {ours.shape}, not {theirs.shape}"
    if ours.dtype != theirs.dtype:
        return f"dtype {ours.dtype}, not {theirs.dtype}"
    a, b = ours.astype(np.float64), theirs.astype(np.float64)
    room = np.zeros(a.shape) if room is None else room
    free = np.isnan(room)
    if theirs.dtype.name in TOLERANCES:
        relative, absolute = TOLERANCES[as_.get(theirs.dtype.name, theirs.dtype.name)]
        # ONNX Runtime's maximum of nothing but negative infinities is the least finite number.
        for sign in (-1, 1):
            b = np.where((a == sign * np.inf) & (b == sign * float(np.finfo(np.float32).max)), a, b)
        finite = np.isfinite(a) & np.isfinite(b)
        special = ~finite & ~((a == b) | (np.isnan(a) & np.isnan(b))) & ~free
        if special.any():
            at = tuple(map(int, np.argwhere(special)[0]))
            return f"{int(special.sum())} of {a.size} special values, first at {at}: {a[at]}, not {b[at]}"
        largest = np.abs(b[finite]).max(initial=0.0)
        with np.errstate(invalid="ignore"):
            error = np.where(finite & ~free, np.abs(a - b), 0.0)
            allowed = (
                relative * np.abs(np.where(finite, b, 0.0))
                + absolute * largest
                + np.where(free, 0, room)
                + 1e-30
            )
    elif theirs.dtype.kind in "iu" and theirs.dtype.itemsize == 8:
        error = np.where(free, 0.0, np.where(ours == theirs, 0.0, np.maximum(np.abs(a - b), 1.0)))
        allowed = np.where(free, 0, room)
    else:
        error, allowed = np.where(free, 0.0, np.abs(a - b)), np.where(free, 0, room)
    with np.errstate(invalid="ignore"):
        wrong = ~(error <= allowed) & np.isfinite(error)
    if not wrong.any():
        return None
    at = tuple(map(int, np.unravel_index(np.where(wrong, error, -1).argmax(), a.shape))) if a.ndim else ()
    return f"{int(wrong.sum())} of {a.size} values, worst at {at}: {ours[at]}, not {theirs[at]}"


def by_onnxruntime(model: onnx.ModelProto, draw: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Results by ONNX Runtime, without its rewrites: what the file says.

    Where it lacks an operator for a type, the evaluator computes that node, and ONNX Runtime the others.
    """
    import onnxruntime

    model = _steps_first(model)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        fed = {i.name: draw[i.name] for i in session.get_inputs() if i.name in draw}
        if all(array.dtype.name != "bfloat16" for array in fed.values()):  # its Python package takes none
            return session.run(None, fed)
    except Exception as error:
        if "INVALID" in str(error) or "load" in str(error):
            raise
    values = _node_by_node(model, draw, first=RUNTIME)
    return [np.asarray(values[output.name]) for output in model.graph.output]


def _steps_first(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with recurrent layers whose steps come first: ONNX Runtime runs no others."""
    if not any(a.name == "layout" and a.i for node in model.graph.node for a in node.attribute):
        return model
    changed = onnx.ModelProto()
    changed.CopyFrom(model)
    del changed.graph.node[:]
    for source in model.graph.node:
        node = onnx.NodeProto.FromString(source.SerializeToString())
        layout = [a for a in node.attribute if a.name == "layout"]
        if not layout or not layout[0].i or node.op_type not in ("LSTM", "GRU", "RNN"):
            changed.graph.node.append(node)
            continue
        node.attribute.remove(layout[0])
        before, behind = [], []
        for n, name in enumerate(source.input):
            if name and n in (0, 5, 6):  # rows and the states before them
                node.input[n] = f"{name}/{source.output[0]}/{n}"
                before.append(helper.make_node("Transpose", [name], [node.input[n]], perm=[1, 0, 2]))
        for n, name in enumerate(source.output):
            if name:
                node.output[n] = f"{name}/steps"
                perm = [1, 0, 2] if n else [2, 0, 1, 3]
                behind.append(helper.make_node("Transpose", [node.output[n]], [name], perm=perm))
        changed.graph.node.extend([*before, node, *behind])
    return changed


def by_reference(model: onnx.ModelProto, draw: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Results by ONNX's own evaluator."""
    from onnx.reference import ReferenceEvaluator

    try:
        with np.errstate(all="ignore"):
            return [
                np.asarray(y) for y in ReferenceEvaluator(_plain(model), new_ops=MENDED).run(None, dict(draw))
            ]
    except Exception:
        values = _node_by_node(model, draw)
        return [np.asarray(values[output.name]) for output in model.graph.output]


def _in_double(model: onnx.ModelProto, draw: Mapping[str, np.ndarray]) -> list[np.ndarray]:
    """Results with every float in float64, rounded to the types of the outputs."""
    wide = run_double(
        StoredModel(_plain(model), {}), dict(draw), [output.name for output in model.graph.output]
    )
    types = {o.name: numpy_type(name_of(o.type.tensor_type.elem_type)) for o in model.graph.output}
    with np.errstate(all="ignore"):
        return [np.asarray(array).astype(types[name]) for name, array in wide.items()]


def _node_by_node(
    model: onnx.ModelProto,
    draw: Mapping[str, np.ndarray],
    change: Change = _as_it_is,
    first: str = EVALUATOR,
) -> dict[str, Any]:
    """Every tensor by name, node after node by the ``first`` of the two references that can."""
    opset = next(o.version for o in model.opset_import if not o.domain)
    arrays = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer} | dict(draw)
    values = {name: Value(name, change(np.asarray(array), name)) for name, array in arrays.items()}
    nodes = list(model.graph.node)
    while nodes:
        node = nodes.pop(0)
        if node.op_type == "If":  # the branch in its place
            wanted = "then_branch" if values[node.input[0]].sample else "else_branch"
            branch = next(a.g for a in node.attribute if a.name == wanted)
            ends = zip(branch.output, node.output, strict=True)
            nodes[:0] = [*branch.node, *(helper.make_node("Identity", [a.name], [b]) for a, b in ends)]
            continue
        inputs = [values[name] for name in node.input if name]
        for name, result in zip(node.output, compute(node, inputs, opset, first), strict=False):
            if name:
                moved = node.op_type in _MOVES
                values[name] = Value(
                    name, result if isinstance(result, list) else change(np.asarray(result), name, moved)
                )
    return {name: value.sample for name, value in values.items()}


def _plain(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model without weights among its inputs, which the evaluator would ask for."""
    weights = {tensor.name for tensor in model.graph.initializer}
    if not any(value.name in weights for value in model.graph.input):
        return model
    plain = onnx.ModelProto()
    plain.CopyFrom(model)
    del plain.graph.input[:]
    plain.graph.input.extend(v for v in model.graph.input if v.name not in weights)
    return plain


def _spreads(
    model: onnx.ModelProto, draw: Mapping[str, np.ndarray], evaluator: bool, setting: Setting
) -> list[np.ndarray] | None:
    """How far rounding errors move each element of the outputs; NaN where anything can come out."""
    noises = [setting.noise(model, np.random.default_rng(n)) for n in range(_NOISE_RUNS)]
    with contextlib.suppress(Exception):
        if evaluator:
            base = noisy(model, draw, None)
            runs = [noisy(model, draw, noise) for noise in noises]
        else:
            base = by_onnxruntime(model, draw)
            runs = [
                by_onnxruntime(model, {name: noise(value, name) for name, value in draw.items()})
                for noise in noises
            ]
        return [_spread(y, [run[n] for run in runs]) for n, y in enumerate(base)]
    return None


def _spread(base: np.ndarray, runs: Arrays) -> np.ndarray:
    base = np.asarray(base).astype(np.float64)
    spread = np.zeros(base.shape)
    for run in runs:
        run = np.asarray(run).astype(np.float64)
        if run.shape != base.shape:
            return np.full(base.shape, np.nan)
        with np.errstate(invalid="ignore"):
            same = (run == base) | (np.isnan(run) & np.isnan(base))
            gap = np.where(same, 0.0, np.abs(run - base))
        spread = np.maximum(spread, np.where(np.isfinite(gap), gap, np.nan))
    return spread


def noisy(model: onnx.ModelProto, draw: Mapping[str, np.ndarray], noise: Noise | None) -> list[np.ndarray]:
    """Results by ONNX's evaluator with a rounding error on every value."""
    values = everything(model, draw, noise or _as_it_is)
    return [values[output.name] for output in model.graph.output]


def everything(
    model: onnx.ModelProto, draw: Mapping[str, np.ndarray], change: Change = _as_it_is
) -> dict[str, Any]:
    """Every tensor of a model by name, each changed as it is made.

    A view of other values is no rounding: what an operator only moves is not changed.
    """
    from onnx.reference import ReferenceEvaluator

    try:
        session = ReferenceEvaluator(_plain(model), new_ops=MENDED)
    except Exception:
        return _node_by_node(model, draw, change)
    values: dict[str, Any] = {"": None}
    values.update(
        {name: change(np.asarray(value), name) for name, value in {**session.rt_inits_, **draw}.items()}
    )
    with np.errstate(all="ignore"):
        for node in session.rt_nodes_:
            inputs = [values[name] for name in node.input]
            extra = {"context": values} if node.need_context() else {}
            for name, value in zip(node.output, node.run(*inputs, **extra), strict=False):
                values[name] = change(value, name, node.op_type in _MOVES)
    return values


_MOVES = frozenset(
    "Reshape Transpose Squeeze Unsqueeze Slice Concat Split Gather Identity Flatten Expand Tile Relu "
    "Constant Max Min ReduceMax ReduceMin MaxPool GlobalMaxPool Pad Where Neg Abs DepthToSpace SpaceToDepth "
    "Trilu Clip GatherND GatherElements Range ConstantOfShape EyeLike OneHot Cast CastLike".split()
)


def grouped(reason: str) -> str:
    """A reason without the names and numbers of its case."""
    text = re.sub(r"'[^']*'", "'…'", reason.split(" What to do:")[0])
    text = re.sub(r"\b[a-z_]+_\d+\b", "…", text)
    return re.sub(r"-?\d+(\.\d+)?", "#", text)[:200]


def verdict_at_sizes(
    model: onnx.ModelProto,
    draws: Sequence[tuple[str, Mapping[str, np.ndarray]]],
    shapes: Mapping[str, Sequence[Any]],
    setting: Setting,
) -> Verdict:
    """Compile a model of open sizes once, and compare on every draw, each behind a text of what it is.

    Draws at which the references disagree are passed over.
    """
    from hetero_tvm.api import import_model

    note = ""
    try:
        imported = import_model(model, shapes=shapes)
        built = setting.built(imported)
        names = [spec.name for spec in imported.signature.inputs]
        for what, draw in draws:
            fault, note = compared(model, draw, built.run({name: draw[name] for name in names}), setting)
            if fault and fault != UNJUDGED:
                return Verdict(WRONG, f"{what}: {fault}" if what else fault, note)
    except Exception as error:
        return failure(error)
    return Verdict(PASSED, note=note)
