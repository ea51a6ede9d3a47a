"""Text at the entrance of a model, whose categories encoders list, as whole numbers: places in that list."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence

import onnx
from onnx import TensorProto, helper

from hetero_tvm.errors import ModelError, shortened

_LEARNING = "ai.onnx.ml"
_ENCODERS = frozenset({"CategoryMapper", "LabelEncoder", "OneHotEncoder"})
_MOVES = frozenset(
    {"ArrayFeatureExtractor", "Concat", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Squeeze",
     "Transpose", "Unsqueeze", "Where"}
)  # fmt: skip
"""Operators that put text elsewhere, with the others of their inputs being numbers or text."""
_SHOWN = 8
"""Categories of an input that a warning lists."""


def numbered_texts(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model itself, or a copy whose inputs of text hold places in its encoders' lists, int64.

    Inputs that meet in one tensor (columns of a table) share a list, which joins those of all encoders that
    read it, each category once, in the order of the nodes.  Text that is in no list is any other number, such
    as -1.  Warns of the lists.

    Raises
    ------
    ModelError : a node reads text in another way.
    """
    texts = _Texts(model)
    if not texts.inputs:
        return model
    made = texts.numbered()
    for name in texts.inputs:
        known = [repr(c.decode(errors="replace")) for c in texts.vocabulary(name)]
        listed = ", ".join(shortened(known, _SHOWN))
        text = f"text of input {name!r} is int64 here: its place, from 0 on, in [{listed}]; -1 for any other"
        warnings.warn(text, stacklevel=4)
    return made


class _Texts:
    """Tensors of text of a model, in groups of those that share a list.

    ``inputs`` : names of the inputs of the model that are text.
    """

    def __init__(self, model: onnx.ModelProto):
        self._model = model
        graph = model.graph
        stored = {t.name: t for t in graph.initializer if t.data_type == TensorProto.STRING}
        kinds = {v.name: v.type.tensor_type.elem_type for v in graph.input}
        self.inputs = [n for n, kind in kinds.items() if kind == TensorProto.STRING and n not in stored]
        self._group = {name: name for name in (*self.inputs, *stored)}
        self._lists: list[tuple[str, Sequence[bytes]]] = []
        if self.inputs:
            for node in graph.node:
                self._visit(node)
            self._lists += [(name, list(tensor.string_data)) for name, tensor in stored.items()]
            self._refuse_results()

    def _visit(self, node: onnx.NodeProto) -> None:
        read = [name for name in node.input if name in self._group]
        if _is_encoder(node) and (read or node.op_type != "CategoryMapper"):
            for name, listed in _lists(node):
                self._group.setdefault(name, name)
                self._lists.append((name, listed))
            if not read or any(name == read[0] for name, _ in _lists(node)):
                return
        elif not read:
            return
        elif node.op_type in _MOVES or node.op_type == "Equal":
            made = node.output if node.op_type in _MOVES else []
            for name in made:
                self._group.setdefault(name, name)
            self._join([*read, *made])
            return
        raise ModelError(
            f"Input {self._of_input(read[0])!r} holds strings, which node {node.name or node.output[0]!r} "
            f"({node.op_type}) reads.",
            hint="Export the model with numeric inputs: what is behind its tokenizer or vectorizer.  Strings "
            "are taken where encoders list all of them (OneHotEncoder, LabelEncoder, CategoryMapper).",
        )

    def _join(self, names: Sequence[str]) -> None:
        roots = {self._group[name] for name in names}
        for name, root in self._group.items():
            if root in roots:
                self._group[name] = self._group[names[0]]

    def _of_input(self, name: str) -> str:
        """An input that a tensor of text comes from; the tensor, where there is none."""
        return next((one for one in self.inputs if self._group[one] == self._group[name]), name)

    def _refuse_results(self) -> None:
        wanted = {self._group[name] for name in self.inputs}
        for value in self._model.graph.output:
            if self._group.get(value.name) in wanted:
                raise ModelError(
                    f"Result {value.name!r} is text of input {self._of_input(value.name)!r}.",
                    hint="Export the model without it.",
                )

    def vocabulary(self, name: str) -> list[bytes]:
        """Categories of a tensor's group, each once."""
        found = [c for one, listed in self._lists if self._group[one] == self._group[name] for c in listed]
        return list(dict.fromkeys(found))

    def numbered(self) -> onnx.ModelProto:
        """A copy of the model with numbers in place of the inputs' text."""
        made = onnx.ModelProto()
        made.CopyFrom(self._model)
        graph = made.graph
        wanted = {self._group[name] for name in self.inputs}
        places = {
            name: {category: place for place, category in enumerate(self.vocabulary(name))}
            for name, root in self._group.items()
            if root in wanted
        }
        for value in (*graph.input, *graph.value_info):
            if value.name in places and value.type.tensor_type.elem_type == TensorProto.STRING:
                value.type.tensor_type.elem_type = TensorProto.INT64
        for tensor in graph.initializer:
            if tensor.name in places:
                values = [places[tensor.name][c] for c in tensor.string_data]
                tensor.CopyFrom(helper.make_tensor(tensor.name, TensorProto.INT64, tensor.dims, values))
        for node in graph.node:
            if _is_encoder(node):
                node.CopyFrom(_numbered(node, places))
        return made


def _is_encoder(node: onnx.NodeProto) -> bool:
    return node.op_type in _ENCODERS and node.domain == _LEARNING and bool(node.input and node.output)


def _lists(node: onnx.NodeProto) -> Iterator[tuple[str, Sequence[bytes]]]:
    """Text that an encoder lists, with the tensor that it describes."""
    for attribute in node.attribute:
        if attribute.name in ("keys_strings", "cats_strings"):
            yield node.input[0], list(attribute.strings)
        elif attribute.name == "values_strings":
            yield node.output[0], list(attribute.strings)
        elif attribute.name == "default_string" and any(a.name == "values_strings" for a in node.attribute):
            yield node.output[0], [attribute.s]


def _numbered(node: onnx.NodeProto, places: Mapping[str, Mapping[bytes, int]]) -> onnx.NodeProto:
    """An encoder that reads and gives places; a mapper from text to numbers becomes an encoder of labels."""
    before, after = places.get(node.input[0]), places.get(node.output[0])
    given = {a.name: a for a in node.attribute}
    options = {name: helper.get_attribute_value(a) for name, a in given.items()}
    mapped = node.op_type == "CategoryMapper"
    if before is not None:
        for old, new in (("keys_strings", "keys_int64s"), ("cats_strings", "cats_int64s")):
            if old in options:
                options[new if not mapped else "keys_int64s"] = [before[c] for c in given[old].strings]
                if mapped:
                    options["values_int64s"] = list(given["cats_int64s"].ints)
                del options[old]
    if after is not None and "values_strings" in options:
        options["values_int64s"] = [after[c] for c in options.pop("values_strings")]
        if "default_string" in options:
            options["default_int64"] = after[options.pop("default_string")]
    if mapped and before is not None:
        options = {k: v for k, v in options.items() if k in ("keys_int64s", "values_int64s", "default_int64")}
    kind = "LabelEncoder" if mapped and before is not None else node.op_type
    names = list(node.input), list(node.output), node.name
    return helper.make_node(kind, *names, domain=_LEARNING, **options)
