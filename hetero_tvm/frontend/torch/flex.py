"""FlexAttention written out: scores, what the model's functions make of them, a softmax and a product.

PyTorch's exporter does not translate the operator, whose functions of single scores are graphs of their own.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from hetero_tvm.frontend.torch.load import quiet, require

if TYPE_CHECKING:
    from types import ModuleType

    from torch.export import ExportedProgram
    from torch.fx import GraphModule, Node


def with_plain_attention(torch: ModuleType, program: ExportedProgram) -> ExportedProgram:
    """The program with PyTorch's own dense formula for each FlexAttention; itself where it has none."""
    flex = getattr(torch.ops.higher_order, "flex_attention", None)
    if flex is None or not any(node.target is flex for node in program.graph.nodes):
        return program
    module = copy.deepcopy(program.graph_module)
    unread: set[Node] = set()
    for node in module.graph.find_nodes(op="call_function", target=flex):
        unread |= _before(start for start in node.args[4] if isinstance(start, torch.fx.Node))
        _write_out(torch, module, node)

    def has_effect(node: Node) -> bool:
        # What numbers the blocks of a mask is read by nobody now, also what is written in place and asserted.
        loops = getattr(node.target, "__module__", "") == "torch._functorch.predispatch"
        asserted = node.all_input_nodes and unread.issuperset(node.all_input_nodes)
        return node.is_impure() and not (loops or asserted or node in unread)

    module.graph.eliminate_dead_code(has_effect)
    module.recompile()
    return program._update(module, program.graph_signature)


def _before(starts: Iterable[Node]) -> set[Node]:
    """Operators that lead to nodes, and these."""
    found, pending = set(), list(starts)
    while pending:
        node = pending.pop()
        if node not in found and node.op == "call_function":
            found.add(node)
            pending += node.all_input_nodes
    return found


def _write_out(torch: ModuleType, module: GraphModule, node: Node) -> None:
    dense = require("torch._higher_order_ops.flex_attention").math_attention
    query, key, value, score, blocks, scale, options, *others = node.args
    by_score, by_mask = [*others, (), ()][:2]
    functions = [module.get_submodule(graph.target) for graph in (score, blocks[-1])]
    operands = [query, key, value, *by_score, *by_mask]
    places = [i for i, operand in enumerate(operands) if isinstance(operand, torch.fx.Node)]

    def attention(*given: Any) -> Any:
        filled = list(operands)
        for place, tensor in zip(places, given, strict=True):
            filled[place] = tensor
        rest = tuple(filled[3 : 3 + len(by_score)]), tuple(filled[3 + len(by_score) :])
        return dense(*filled[:3], functions[0], (functions[1],), scale, options, *rest)

    given = [operands[place] for place in places]
    values = [operand.meta["val"] for operand in given]
    with quiet(), torch.no_grad(), torch._guards.detect_fake_mode(values):
        traced = torch.fx.experimental.proxy_tensor.make_fx(attention)(*values)
    _state_numbers(torch, traced)
    starts = traced.graph.find_nodes(op="placeholder")
    known = set(module.graph.nodes)
    with module.graph.inserting_before(node):
        results = module.graph.graph_copy(traced.graph, dict(zip(starts, given, strict=True)))
    for new in module.graph.nodes:
        if new not in known:
            new.meta.update({k: v for k, v in node.meta.items() if k in ("nn_module_stack", "stack_trace")})
    for user in list(node.users):  # they stay, as the program's signature may have their names
        user.args, user.target = (results[user.args[1]],), torch.ops.aten.alias.default
    module.graph.erase_node(node)


def _state_numbers(torch: ModuleType, traced: GraphModule) -> None:
    """Make what is traced say its single numbers (minus infinity), which it keeps beside its graph."""
    graph = traced.graph
    for node in graph.find_nodes(op="get_attr"):
        number = getattr(traced, node.target)
        with graph.inserting_before(node):
            full = graph.call_function(
                torch.ops.aten.full.default, ([], number.item()), {"dtype": number.dtype}
            )
        full.meta.update(node.meta)
        node.replace_all_uses_with(full)
        graph.erase_node(node)
