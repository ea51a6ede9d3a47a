"""One spelling of what files write in several: the name of ONNX's domain, attributes that calls lack."""

from __future__ import annotations

from collections.abc import MutableSequence

import onnx
from onnx import defs

from hetero_tvm.frontend.onnx.graph.constants import ONNX_DOMAINS
from hetero_tvm.frontend.onnx.graph.nodes import all_nodes, nodes_of_model, refusal

Key = tuple[str, str, str]
"""Domain, name and overload of a function."""
Defaults = dict[Key, dict[str, onnx.AttributeProto]]
"""Default attributes of functions, by name."""


def spelled_out(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model itself, or a copy in which

    - ONNX's own domain is the empty name, as ``ai.onnx`` is in ONNX Runtime;
    - nodes have the defaults of the functions that they call, which ONNX's inliner leaves out;
    - no function has the name of an operator of ONNX, which goes before it, as in ONNX Runtime.
    """
    named = [*model.opset_import, *nodes_of_model(model), *model.functions]
    named += [entry for function in model.functions for entry in function.opset_import]
    full = any(entry.domain == ONNX_DOMAINS[1] for entry in named)
    hidden = _hidden(model)
    if not full and not hidden and not any(f.attribute_proto for f in model.functions):
        return model
    made = onnx.ModelProto()
    made.CopyFrom(model)
    for entry in (*nodes_of_model(made), *made.functions):
        entry.domain = _short(entry.domain)
    for imports in (made.opset_import, *(function.opset_import for function in made.functions)):
        _shorten(imports)
    kept = [function for function in made.functions if _key(function) not in hidden]
    copies = [onnx.FunctionProto.FromString(function.SerializeToString()) for function in kept]
    del made.functions[:]
    made.functions.extend(copies)
    defaults = {_key(called): {a.name: a for a in called.attribute_proto} for called in made.functions}
    while any([_take_defaults(function, defaults) for function in made.functions]):
        pass
    for node in nodes_of_model(made):
        given = {attribute.name for attribute in node.attribute}
        node.attribute.extend(a for name, a in defaults.get(_called(node), {}).items() if name not in given)
    return made


def _take_defaults(function: onnx.FunctionProto, defaults: Defaults) -> bool:
    """Give attributes without a default, which a function hands on only, that of the functions that it calls;
    ``defaults`` has them then.

    Raises
    ------
    UnsupportedOperatorError : they have several; the inliner would leave out the attribute for all.
    """
    changed = False
    for name in list(function.attribute):
        read = [
            (node, defaults.get(_called(node), {}).get(attribute.name))
            for node in all_nodes(function)
            for attribute in node.attribute
            if attribute.ref_attr_name == name
        ]
        found = {default and _renamed(default, name).SerializeToString() for _, default in read}
        if found <= {None}:
            continue
        if len(found) > 1:
            hint = "Give the attribute where the function is called, or a default where it is defined."
            raise refusal(read[0][0], f"an attribute {name!r} that has several defaults", hint)
        function.attribute.remove(name)
        default = onnx.AttributeProto.FromString(found.pop())
        function.attribute_proto.append(default)
        defaults[_key(function)][name] = default
        changed = True
    return changed


def _renamed(attribute: onnx.AttributeProto, name: str) -> onnx.AttributeProto:
    copy = onnx.AttributeProto.FromString(attribute.SerializeToString())
    copy.name = name
    return copy


def _key(function: onnx.FunctionProto) -> Key:
    return _short(function.domain), function.name, function.overload


def _called(node: onnx.NodeProto) -> Key:
    return node.domain, node.op_type, node.overload


def _short(domain: str) -> str:
    return "" if domain in ONNX_DOMAINS else domain


def _shorten(imports: MutableSequence[onnx.OperatorSetIdProto]) -> None:
    """Name ONNX's domain by the empty name in a list of imports; it may be there under both."""
    entries = {entry.domain: entry.version for entry in imports}
    short = {_short(domain): version for domain, version in entries.items()} | {
        domain: version for domain, version in entries.items() if not domain
    }
    del imports[:]
    imports.extend(onnx.helper.make_opsetid(domain, version) for domain, version in short.items())


def _hidden(model: onnx.ModelProto) -> set[Key]:
    """Functions of ONNX's domain with the names of its operators."""
    opset = next((o.version for o in model.opset_import if o.domain in ONNX_DOMAINS), 1)
    keys = {_key(function) for function in model.functions}
    return {key for key in keys if not key[0] and defs.has(key[1], opset, "")}
