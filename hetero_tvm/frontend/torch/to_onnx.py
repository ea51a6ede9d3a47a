"""Translation of exported PyTorch programs to ONNX by PyTorch's own exporter, in the program's names."""

from __future__ import annotations

import ast
import contextlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

import onnx

from hetero_tvm.errors import ModelError, UnsupportedOperatorError, shortened
from hetero_tvm.frontend.onnx.graph.body import FROM_0
from hetero_tvm.frontend.stored import StoredModel, stub
from hetero_tvm.frontend.torch.attention import guard_attention
from hetero_tvm.frontend.torch.causes import untraceable
from hetero_tvm.frontend.torch.decompositions import decomposed
from hetero_tvm.frontend.torch.load import quiet, require
from hetero_tvm.frontend.torch.registry import OPSET, decomposition_table, registry
from hetero_tvm.frontend.torch.translatable import is_translatable
from hetero_tvm.host import mapped
from hetero_tvm.host.constants import SHARED

if TYPE_CHECKING:
    import onnx_ir as ir
    from torch.export import ExportedProgram, ExportGraphSignature
    from torch.fx import Node

_SCOPES = "pkg.torch.onnx.name_scopes"
_CALLED = "pkg.torch.onnx.fx_node"
_MANY_SLICES = 200
"""Slices of a program from which on PyTorch's exporter would take minutes to look for pairs of them."""
_BOUNDS = re.compile("Fuse(Successive|MinMax|MaxMin)")
"""Names of the exporter's rules that unite bounds."""
_APART = SHARED | {"bfloat16"}
"""Types of weights that are kept as arrays."""


def to_onnx(program: ExportedProgram) -> StoredModel:
    """Translate an exported program; open dimensions stay open, large weights are shared with the program.

    Raises
    ------
    ModelError, UnsupportedOperatorError, UsageError : see
        :func:`hetero_tvm.frontend.torch.importer.import_torch`.
    """
    torch = require("torch")
    require("onnxscript")
    exporter = require("torch.onnx._internal.exporter._core")
    _refuse_impure(torch, program)
    # Without gradients attention keeps the strides that the program's views were traced with.
    with quiet(), torch.no_grad():
        try:
            # As torch.onnx.export(dynamo=True) does, which makes its registry anew each time.
            plain = decomposed(program, decomposition_table())
            with _rules_for(plain), _exact_numbers(), _decomposed_once():
                translated = exporter.export(
                    plain,
                    (),
                    {},
                    registry=registry(),
                    dynamic_shapes={},
                    input_names=_input_names(torch, program),
                    output_names=_output_names(torch, program),
                    optimize=True,
                    verbose=False,
                    opset_version=OPSET,
                )
        except Exception as error:
            raise _translation_error(program, error) from error
        _refuse_changes(translated.exported_program.graph_signature)
        stored = _stored(translated.model)
    guard_attention(stored.proto.graph)
    _give_types(torch, program, stored.proto.graph)
    _name_nodes(stored.proto.graph)
    _name_dimensions(stored.proto.graph)
    return stored


@contextlib.contextmanager
def _rules_for(program: ExportedProgram) -> Iterator[None]:
    """The optimiser of PyTorch's exporter, without the rules that change numbers or take minutes.

    It takes a number within 1e-8 for zero and one within 1e-5 for one, and so drops ``x + 1e-10``, which
    keeps a division finite.  Bounds that follow each other become one pair, whatever their order, and two
    pairs of one tensor get one name.  Where slices are many, its rules about several nodes are tried on
    each two of them: a loop of assignments to rows (gated delta rules, chunks of 64) takes five times as
    long as all the rest.
    """
    rewriter = require("onnxscript.rewriter")
    slices = sum("aten.slice" in str(node.target) for node in program.graph.nodes)
    known = getattr(rewriter, "_DEFAULT_REWRITE_RULES", None)
    if known is None:
        yield
        return
    patterns = {rule: rule._target_pattern for rule in known if not _BOUNDS.match(rule.name or "")}
    kept = tuple(
        rule
        for rule, pattern in patterns.items()
        if not _guesses_numbers(pattern) and (slices < _MANY_SLICES or pattern.has_single_output_node)
    )
    with _exchanged(rewriter, "_DEFAULT_REWRITE_RULES", kept):
        yield


@contextlib.contextmanager
def _exact_numbers() -> Iterator[None]:
    """PyTorch's exporter with all digits of Python's numbers that it casts to another type.

    It takes them for float32 first, so ``x + 0.1`` of float64 has eight digits, and ``x + 1e-300`` none.
    """
    ir = require("onnx_ir")
    building = require("torch.onnx._internal.exporter._building")
    known = building._process_python_constants

    def process(signature: Any, named_inputs: dict[str, Any], *rest: Any) -> Any:
        number = named_inputs.get("input")
        if signature.name in ("Cast", "CastLike") and isinstance(number, float):
            named_inputs["input"] = ir.tensor(number, dtype=ir.DataType.DOUBLE)
        return known(signature, named_inputs, *rest)

    with _exchanged(building, "_process_python_constants", process):
        yield


def _decomposed_once() -> contextlib.AbstractContextManager[None]:
    """PyTorch's exporter without its decompositions, for a program that has been through them."""
    passes = require("torch.onnx._internal.exporter._fx_passes")
    return _exchanged(passes, "decompose_with_registry", lambda program, registry: program)


@contextlib.contextmanager
def _exchanged(module: ModuleType, name: str, value: Any) -> Iterator[None]:
    """A module that has another value by this name for a while."""
    known = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, known)


def _give_types(torch: ModuleType, program: ExportedProgram, graph: onnx.GraphProto) -> None:
    """Give the results the program's types: sums of 16 bits are written in 32, and cast for readers alone."""
    kinds = torch.export.graph_signature
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    given = [
        values.get(spec.arg.name)
        for spec in program.graph_signature.output_specs
        if spec.kind is kinds.OutputKind.USER_OUTPUT
        and isinstance(spec.arg, kinds.TensorArgument | kinds.SymIntArgument)
    ]
    narrow = {torch.float16: onnx.TensorProto.FLOAT16, torch.bfloat16: onnx.TensorProto.BFLOAT16}
    for result, value in zip(graph.output, given, strict=True):
        kind = narrow.get(getattr(value, "dtype", None))
        if kind is None or result.type.tensor_type.elem_type != onnx.TensorProto.FLOAT:
            continue
        name = result.name
        for node in graph.node:
            for names in (node.input, node.output):
                for place, other in enumerate(names):
                    if other == name:
                        names[place] = f"{name}/wide"
        graph.node.append(
            onnx.helper.make_node("Cast", [f"{name}/wide"], [name], name=f"{name}/cast", to=kind)
        )
        result.type.tensor_type.elem_type = kind


def _guesses_numbers(pattern: Iterable[Any]) -> bool:
    """Whether a pattern is one operator with a number, such as ``x + 0``: it is compared by tolerance."""
    nodes = list(pattern)
    return len(nodes) == 1 and any(hasattr(value, "_abs_tol") for value in nodes[0].inputs)


def _stored(model: ir.Model) -> StoredModel:
    """ONNX's protobuf of the exporter's model, without its large weights, which need not fit into one."""
    ir = require("onnx_ir")
    arrays, stubs = {}, {}
    for name, value in model.graph.initializers.items():
        tensor = value.const_value
        if tensor is None or tensor.nbytes < mapped.LARGE:
            continue
        array = tensor.numpy()
        if array.nbytes == tensor.nbytes and array.dtype.name in _APART:
            arrays[name] = mapped.mapped(array)
            stubs[name] = stub(name, int(tensor.dtype), array.shape)
            value.const_value = ir.ExternalTensor("", 0, 0, tensor.dtype, shape=tensor.shape, name=name)
    proto = ir.serde.serialize_model(model)
    for tensor in proto.graph.initializer:
        if tensor.name in stubs:
            tensor.CopyFrom(stubs[tensor.name])
    return StoredModel(proto, arrays)


# ---- what cannot be compiled ----------------------------------------------------------------


def _refuse_impure(torch: ModuleType, program: ExportedProgram) -> None:
    """Refuse programs that are not pure functions of tensors; lists everything."""
    signature = program.graph_signature
    kinds = torch.export.graph_signature
    problems = [
        f"{end} {node.name!r} is complex: exchange torch.view_as_real of it"
        for end, names in (("input", signature.user_inputs), ("result", signature.user_outputs))
        for node in program.graph.nodes
        if node.name in names and getattr(node.meta.get("val"), "is_complex", bool)()
    ]
    for spec in signature.input_specs:
        if spec.kind is kinds.InputKind.USER_INPUT and isinstance(
            spec.arg, kinds.SymIntArgument | kinds.SymFloatArgument | kinds.SymBoolArgument
        ):
            problems.append(f"input {spec.arg.name!r} is a number, not a tensor")
        elif spec.kind in (kinds.InputKind.CUSTOM_OBJ, kinds.InputKind.TOKEN):
            problems.append(f"input {spec.arg.name!r} is an object of its own class")
    for node in program.graph.nodes:
        if node.op == "call_function" and _trains(torch, node):
            problems.append(f"node {_scoped(node)} ({node.target}) is in training mode")
        elif node.op == "call_function" and _draws(torch, node):
            problems.append(f"node {_scoped(node)} ({node.target}) draws random numbers")
    if problems:
        raise _impure(problems)


def _refuse_changes(signature: ExportGraphSignature) -> None:
    """Refuse programs that keep or change state; it shows once they are decomposed."""
    changed = {*signature.buffers_to_mutate.values(), *signature.user_inputs_to_mutate.values()}
    if changed:
        raise _impure([f"{target!r} is changed in place" for target in sorted(changed)])


def _impure(problems: list[str]) -> ModelError:
    """Error for a program that is not a pure function of tensors."""
    return ModelError(
        "The program is not a fixed function of tensors.",
        problems=shortened(problems),
        hint="To infer, call model.eval() before it is exported or compiled; export without number inputs.",
    )


def _trains(torch: ModuleType, node: Node) -> bool:
    """Whether a node changes its statistics, or drops values at random."""
    flags = {torch.ops.aten.dropout.default: "train", torch.ops.aten.batch_norm.default: "training"}
    if node.target not in flags:
        return False
    names = [argument.name for argument in node.target._schema.arguments]
    arguments = dict(zip(names, node.args, strict=False)) | node.kwargs
    return bool(arguments.get(flags[node.target])) and arguments.get("p") != 0


def _draws(torch: ModuleType, node: Node) -> bool:
    """Whether a node draws random numbers; those that only would with another argument do not."""
    if torch.Tag.nondeterministic_seeded not in getattr(node.target, "tags", ()):
        return False
    schema = [argument for argument in node.target._schema.arguments]
    given = dict(zip((a.name for a in schema), node.args, strict=False)) | node.kwargs
    for argument in schema:
        value = given.get(argument.name, argument.default_value)
        if argument.name in ("train", "training") and not value:
            return False
        if argument.name in ("dropout_p", "dropout", "p") and value == 0:
            return False
    return True


def _translation_error(program: ExportedProgram, error: Exception) -> ModelError:
    """Error for a failed translation; lists all operators without translation, if that was the reason."""
    causes = []
    link: BaseException | None = error
    while link is not None and link not in causes:
        causes.append(link)
        link = link.__cause__ or link.__context__
    if any(type(cause).__name__ == "DispatchError" for cause in causes):
        missing = _untranslatable(program)
        if missing:
            problems = [
                f"{operator}: {len(nodes)} node{'s' if len(nodes) > 1 else ''} ({', '.join(nodes[:3])}"
                + (", ...)" if len(nodes) > 3 else ")")
                for operator, nodes in sorted(missing.items(), key=lambda item: (-len(item[1]), item[0]))
            ]
            return UnsupportedOperatorError(
                f"The program uses {len(missing)} PyTorch operator{'s' if len(missing) > 1 else ''} "
                "without translation.",
                problems=problems,
                hint="Replace them in the model, or register a decomposition for them and export again.",
            )
    if (refusal := untraceable(error)) is not None:
        return refusal
    deepest = causes[-1]
    line = next((line.strip() for line in str(deepest).splitlines() if line.strip()), "")
    return ModelError(
        f"PyTorch's exporter cannot translate the program. {type(deepest).__name__}: {line[:400]}",
        hint="torch.onnx.export(program, dynamo=True, report=True) writes the whole story.",
    )


def _untranslatable(program: ExportedProgram) -> dict[str, list[str]]:
    """Nodes by operator without translation, after PyTorch's own decompositions."""
    missing: dict[str, list[str]] = defaultdict(list)
    with quiet():
        try:
            plain = program.run_decompositions(dict(decomposition_table()))
        except Exception:  # an operator whose sizes depend on values: PyTorch lost track of them
            plain = program
        for node in plain.graph.nodes:
            if node.op == "call_function" and node.users and not is_translatable(node):
                missing[str(node.target)].append(_scoped(node))
    return missing


# ---- names ----------------------------------------------------------------------------------


def _scoped(node: Node) -> str:
    """``path.of.module/node`` of a node of the program."""
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    path = stack[-1][0] if stack else ""
    return f"{path}/{node.name}" if path else node.name


def _name_nodes(graph: onnx.GraphProto) -> None:
    """Call each ONNX node after the program's node that it was made from.

    Of several nodes made from one, the last has its name, the others carry their operator too, and a number
    where that is not enough: ONNX Runtime takes each name once.
    """
    names = [_scope(node) for node in graph.node]
    last = {name: index for index, name in enumerate(names)}
    count: Counter[str] = Counter()
    for index, (node, name) in enumerate(zip(graph.node, names, strict=True)):
        if name:
            full = name if last[name] == index else f"{name}.{node.op_type}"
            count[full] += 1
            node.name = full if count[full] == 1 else f"{full}.{count[full]}"
            if node.op_type == "Gather" and _looks_up_rows(node):
                node.name += FROM_0


def _looks_up_rows(node: onnx.NodeProto) -> bool:
    """Whether PyTorch counts a lookup's indices from the start alone: one below 0 is an error there."""
    called = next((entry.value for entry in node.metadata_props if entry.key == _CALLED), "")
    return any(f"target=torch.ops.aten.{name}." in called for name in ("embedding", "index_select"))


def _scope(node: onnx.NodeProto) -> str:
    """``path.of.module/node`` of an ONNX node, from what the exporter wrote beside it; "" if it did not."""
    text = next((entry.value for entry in node.metadata_props if entry.key == _SCOPES), "[]")
    try:
        scopes = [scope for scope in ast.literal_eval(text) if scope]
    except (SyntaxError, ValueError):
        return ""
    return "/".join(scopes[-2:])


def _input_names(torch: ModuleType, program: ExportedProgram) -> list[str]:
    """Names of the tensors that the program takes; flags and None are fixed in it."""
    kinds = torch.export.graph_signature
    return [
        spec.arg.name
        for spec in program.graph_signature.input_specs
        if spec.kind is kinds.InputKind.USER_INPUT and isinstance(spec.arg, kinds.TensorArgument)
    ]


def _output_names(torch: ModuleType, program: ExportedProgram) -> list[str]:
    """Names from the structure that the program returns: keys of dictionaries and fields, or numbers."""
    pytree, kinds = torch.utils._pytree, torch.export.graph_signature
    specs = [
        spec
        for spec in program.graph_signature.output_specs
        if spec.kind is torch.export.graph_signature.OutputKind.USER_OUTPUT
    ]
    structure = program.call_spec.out_spec
    after = [spec for spec in specs if spec.target]  # state that the program changes
    if after:
        specs, structure = specs[: -len(after)], structure.child(0)
    leaves, _ = pytree.tree_flatten_with_path(pytree.tree_unflatten(list(range(len(specs))), structure))
    names = []
    for path, index in leaves:
        if isinstance(specs[index].arg, kinds.TensorArgument | kinds.SymIntArgument):  # sizes are results
            keys = [str(getattr(k, "key", getattr(k, "idx", getattr(k, "name", "")))) for k in path]
            name = re.sub(r"\W+", "_", "_".join(keys))
            names.append(name if name and not name[0].isdigit() else f"output_{name}".rstrip("_"))
    names += [spec.target for spec in after]
    taken = Counter(
        spec.arg.name for spec in program.graph_signature.input_specs if getattr(spec.arg, "name", None)
    )
    unique = []
    for name in names:
        while taken[name]:
            name += "_out"
        taken[name] += 1
        unique.append(name)
    return unique


def _name_dimensions(graph: onnx.GraphProto) -> None:
    """Call open dimensions by their role; PyTorch keeps no names of them."""
    roles: dict[str, str] = {}
    counts: Counter[str] = Counter()
    for value in graph.input:
        dims = value.type.tensor_type.shape.dim
        for axis, dim in enumerate(dims):
            symbol = dim.dim_param
            if symbol and symbol not in roles:
                plain = symbol.isidentifier()
                role = "batch" if axis == 0 else "sequence" if axis == 1 and len(dims) <= 3 else "size"
                role = role if plain else "computed"
                roles[symbol] = f"{role}_{counts[role]}" if counts[role] else role
                counts[role] += 1
            if symbol:
                dim.dim_param = roles[symbol]
