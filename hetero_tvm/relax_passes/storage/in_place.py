"""Kernels that write their result over an input that nobody reads later, or into a part of a concatenation.

For each call, in program order: an input may give its memory to the output when it is of the same
size, was allocated by the function itself (never an input of the user, never a constant), nothing
that may share its memory is used later, and the kernel's accesses allow it (``codegen.access_order``).
The call then takes a variant of the kernel in which the input is a view of the output, one parameter
less: the compiler knows that both are the same memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hetero_tvm.codegen.access_order import why_not_in_place
from hetero_tvm.host.tvm import Expr, GlobalVar, IRModule, PrimFunc, SBlock, SBlockRealize, Var, tirx
from hetero_tvm.relax_passes.storage.concatenation import parts_of
from hetero_tvm.relax_passes.storage.live_ranges import ELSEWHERE, KernelCall, LiveRanges, Storage, kernel_of


@dataclass(frozen=True)
class InPlace:
    """A call that works in place: its ``inputs`` (parameter numbers) lie in ``output``."""

    call: KernelCall
    inputs: tuple[int, ...]
    output: int


@dataclass
class Sharing:
    """Storages that are one piece of memory, and the calls that rely on it."""

    owner: dict[int, int] = field(default_factory=dict)
    begins: dict[int, int] = field(default_factory=dict)
    """First byte within its owner of a storage that is a part of a concatenation."""
    left_out: set[Var] = field(default_factory=set)
    """Variables of the concatenations that have nothing to copy."""
    calls: list[InPlace] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    """Kernels that cannot work in place though the graph would allow it, with the reason."""

    def find(self, number: int) -> int:
        """The storage whose memory this one uses."""
        while number in self.owner:
            number = self.owner[number]
        return number

    def offset(self, number: int) -> int:
        """First byte of a storage within the one whose memory it uses."""
        total = 0
        while number in self.owner:
            total, number = total + self.begins.get(number, 0), self.owner[number]
        return total


def share(module: IRModule, ranges: LiveRanges) -> Sharing:
    """Decide which calls work in place; gives the owning storages the live range of all that share them."""
    sharing = Sharing()
    for joined, whole, begins in parts_of(module, ranges):
        sharing.left_out.add(joined.var)
        for part, begin in begins.items():
            _join(ranges.storages, sharing, whole, part, begin)
    proofs: dict[tuple[GlobalVar, tuple[int, ...], int], str | None] = {}
    for call in ranges.calls:
        function = kernel_of(module, call)
        if call.var in sharing.left_out or function is None or len(function.params) != len(call.args):
            continue
        taken: set[int] = set()
        for output, arg in enumerate(call.args):
            made = _made_here(ranges, sharing, call, arg)
            if made is None:
                continue
            for number, inputs in _dying(ranges, sharing, call, made).items():
                if number in taken:
                    continue
                key = (call.callee, inputs, output)
                if key not in proofs:
                    proofs[key] = why_not_in_place(function, inputs, output)
                if proofs[key] is not None:
                    sharing.refused[f"{call.name}: {function.params[inputs[0]].name}"] = proofs[key]
                    continue
                _unite(ranges.storages, sharing, number, made.number)
                sharing.calls.append(InPlace(call, inputs, output))
                taken.add(number)
                break
    return sharing


def _made_here(ranges: LiveRanges, sharing: Sharing, call: KernelCall, arg: Expr) -> Storage | None:
    """The storage that ``arg`` is, when this call is the first to use it: an output of the call."""
    numbers = ranges.of(arg)
    if len(numbers) != 1 or ELSEWHERE in numbers:
        return None
    storage = ranges.storages[next(iter(numbers))]
    if storage.is_input or storage.lower != call.step or storage.number in sharing.owner:
        return None
    return storage if arg.same_as(storage.var) else None


def _dying(
    ranges: LiveRanges, sharing: Sharing, call: KernelCall, made: Storage
) -> Mapping[int, tuple[int, ...]]:
    """Memory that ends with this call and could hold ``made``: owner -> all arguments in it."""
    inside: dict[int, list[int]] = {}
    unclear: set[int] = set()
    for index, arg in enumerate(call.args):
        numbers = {sharing.find(number) for number in ranges.of(arg)}
        if len(numbers) > 1 or any(number in sharing.begins for number in ranges.of(arg)):
            unclear |= numbers
        for number in numbers - {ELSEWHERE}:
            inside.setdefault(number, []).append(index)
    found = {}
    for number, indices in inside.items():
        storage = ranges.storages[number]
        if number in unclear or number == made.number or not storage.plannable:
            continue
        ends = storage.lower < call.step and storage.upper == call.step + 1
        if ends and storage.nbytes == made.nbytes and storage.device == made.device:
            found[number] = tuple(indices)
    return found


def _unite(storages: list[Storage], sharing: Sharing, owner: int, other: int) -> None:
    a, b = storages[owner], storages[other]
    sharing.owner[other] = owner
    a.upper = max(a.upper, b.upper)
    a.escapes |= b.escapes


def _join(storages: list[Storage], sharing: Sharing, whole: int, part: int, begin: int) -> None:
    a, b = storages[whole], storages[part]
    sharing.owner[part], sharing.begins[part] = whole, begin
    a.lower, a.upper = min(a.lower, b.lower), max(a.upper, b.upper)


def variant(function: PrimFunc, views: Mapping[int, int]) -> PrimFunc:
    """``function`` without the parameters that are keys of ``views``: views of the parameters there."""
    params = list(function.params)
    declared = [tirx.DeclBuffer(params[i], data=params[output].data) for i, output in views.items()]
    body = function.body
    if isinstance(body, SBlockRealize):  # passes over blocks look for the root block first
        root = body.block
        inner = tirx.SeqStmt([*declared, root.body])
        block = SBlock(
            root.iter_vars,
            root.reads,
            root.writes,
            root.name_hint,
            inner,
            root.init,
            root.alloc_buffers,
            root.match_buffers,
            root.annotations,
        )
        body = SBlockRealize(body.iter_values, body.predicate, block)
    else:
        body = tirx.SeqStmt([*declared, body])
    kept = [param for i, param in enumerate(params) if i not in views]
    return tirx.PrimFunc(kept, body, function.ret_type, function.attrs)
