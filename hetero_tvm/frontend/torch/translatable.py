"""PyTorch operators that can be translated: by its exporter's registry, by a decomposition, or by ours."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from hetero_tvm.frontend.torch.decompositions import decompositions
from hetero_tvm.frontend.torch.load import quiet, require

if TYPE_CHECKING:
    from torch.fx import Node

#: The newest ONNX opset in which PyTorch's exporter still writes attention as matrix products.
OPSET = 20


@functools.lru_cache(maxsize=1)
def registry() -> Any:
    """The exporter's registry of translations, which takes longer to make than most programs to translate.

    Raises
    ------
    UsageError : onnxscript is not installed.
    """
    require("onnxscript")
    with quiet():
        registration = require("torch.onnx._internal.exporter._registration")
        return registration.ONNXRegistry.from_torchlib(opset_version=OPSET)


def is_translatable(node: Node) -> bool:
    """Whether a node of a functional ATen graph has a translation, directly or after decomposition.

    What is no operator of PyTorch's dispatcher (``operator.getitem``) is taken to have one.  The node's
    arguments are described by their ``meta["val"]``.
    """
    operator = node.target
    if not hasattr(operator, "_schema") or registry().is_registered(operator):
        return True
    table = _all_decompositions()
    return operator in table and all(map(registry().is_registered, _decomposed(node, table)))


def _all_decompositions() -> dict[Any, Any]:
    """Decompositions of ours, then PyTorch's: of operators without ours, and of calls that ours leave."""
    theirs = decomposition_table()

    def either(operator: Any, function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            found = function(*args, **kwargs)
            return theirs[operator](*args, **kwargs) if found is NotImplemented else found

        return call

    ours = decompositions()
    return theirs | ours | {o: either(o, function) for o, function in ours.items() if o in theirs}


def _decomposed(node: Node, table: dict[Any, Any]) -> list[Any]:
    """Operators that a node becomes; itself where it cannot be traced alone."""
    torch = require("torch")
    tree = torch.utils._pytree
    leaves, structure = tree.tree_flatten((node.args, node.kwargs))
    values = [leaf.meta.get("val") if isinstance(leaf, torch.fx.Node) else leaf for leaf in leaves]
    places = [i for i, value in enumerate(values) if isinstance(value, torch.Tensor)]

    def call(*tensors: Any) -> Any:
        given = dict(zip(places, tensors, strict=True))
        args, kwargs = tree.tree_unflatten([given.get(i, v) for i, v in enumerate(values)], structure)
        return node.target(*args, **kwargs)

    trace = torch.fx.experimental.proxy_tensor.make_fx(call, decomposition_table=table, tracing_mode="fake")
    try:
        with quiet(), torch.no_grad():
            traced = trace(*(torch.empty(values[i].shape, dtype=values[i].dtype) for i in places))
    except Exception:  # what its decomposition raises is as good as none
        return [node.target]
    return [n.target for n in traced.graph.nodes if n.op == "call_function" and hasattr(n.target, "_schema")]


@functools.lru_cache(maxsize=1)
def decomposition_table() -> dict[Any, Any]:
    """PyTorch's decompositions of operators that its exporter has no translation of."""
    decomposition = require("torch.onnx._internal.exporter._decomp")
    with quiet():
        direct = set(decomposition.get_onnx_implemented_overloads(registry()))
        return decomposition.create_onnx_friendly_decomposition_table(direct)
