"""Arenas, one per device, for everything that lives within a call.

Live ranges (``live_ranges``) of the lowered function, calls that may work in place (``in_place``) and
workspaces (``workspaces``) make a planning problem; the planner (``hetero_tvm.memory``) gives each
buffer an offset.  The function then takes one storage per device, with all tensors as views into it.
The virtual machine's pooled allocator hands the same storage to every call, so that the arena is
allocated once; calls that run at the same time on virtual machines of their own get one each.

Left outside: inputs, constants, and results, which belong to the caller after the call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hetero_tvm import memory
from hetero_tvm.host.tvm import GlobalVar, IRModule, Var, relax, tvm
from hetero_tvm.memory.model_plan import Arena, MemoryPlan, Tensor
from hetero_tvm.relax_passes.rewriting.bindings import map_bindings
from hetero_tvm.relax_passes.rewriting.graph import Sources
from hetero_tvm.relax_passes.storage import in_place, workspaces
from hetero_tvm.relax_passes.storage.live_ranges import (
    LiveRanges,
    Storage,
    analyse,
    bindings_of,
    is_op_call,
    kernel_of,
)

ALIGNMENT = 64
"""Alignment of every tensor, in bytes: one cache line, which is also what TVM's kernels require."""
PLANNING_SECONDS = 10.0
"""Time limit of the search for a better plan, in seconds; graphs of models take milliseconds."""


def plan_memory(
    module: IRModule, sources: Sources | None = None, *, share: bool = True
) -> tuple[IRModule, MemoryPlan]:
    """Plan the memory of ``main``.

    Parameters
    ----------
    module : after ``CallTIRRewrite``: explicit allocations, kernels that write to their last arguments.
    sources : source node names by variable name, for the plan.
    share : let kernels work in place where that is safe.

    Returns
    -------
    The module, whose ``main`` allocates one storage per device, and the plan.

    Raises
    ------
    BuildError : a symbolic dimension without an upper bound.
    """
    module = workspaces.as_arguments(module)
    ranges = analyse(module["main"])
    before = {storage.number: (storage.lower, storage.upper) for storage in ranges.storages}
    sharing = in_place.share(module, ranges) if share else in_place.Sharing()
    arenas: dict[tuple[int, str], Arena] = {}
    for device in sorted({s.device for s in _planned(ranges, sharing)}):
        tensors = tuple(
            _tensor(storage, before[storage.number], sharing, sources or {})
            for storage in _planned(ranges, sharing)
            if storage.device == device
        )
        arena = Arena(_device_name(device), tensors, memory.Plan({}, 0, 0, True, "trivial", 0.0))
        plan = memory.plan(arena.problem, seconds=PLANNING_SECONDS, alignment=ALIGNMENT)
        arenas[device] = Arena(arena.device, tensors, plan)
    plan = MemoryPlan(
        arenas=tuple(arenas.values()),
        steps=ranges.steps,
        static_plan=_static_plan(module, ranges),
        outputs=sum(
            storage.nbytes
            for storage in ranges.storages
            if storage.escapes and not storage.is_input and storage.number not in sharing.owner
        ),
        constant_results=ranges.constant_results,
        in_place=tuple(ranges.storages[_number(ranges, call)].name for call in sharing.calls),
        joined={
            name: tuple((sources or {}).get(name, ()))
            for name in sorted({ranges.storages[sharing.owner[part]].name for part in sharing.begins})
        },
        refused=sharing.refused,
        stack=_per_thread(module, ranges),
    )
    return _rewrite(module, ranges, sharing, arenas), plan


def _planned(ranges: LiveRanges, sharing: in_place.Sharing) -> list[Storage]:
    return [s for s in ranges.storages if s.lower >= 0 and ranges.storages[sharing.find(s.number)].plannable]


def _tensor(storage: Storage, lived: tuple[int, int], sharing: in_place.Sharing, sources: Sources) -> Tensor:
    return Tensor(
        name=f"{storage.name}@{lived[0]}" if storage.name == workspaces.NAME else storage.name,
        kernel=storage.writer,
        buffer=_buffer(sharing.find(storage.number)),
        lower=lived[0],
        upper=lived[1],
        nbytes=storage.nbytes,
        nodes=tuple(sources.get(storage.name, ())),
        workspace=storage.var.name == workspaces.NAME,
        begin=sharing.offset(storage.number),
    )


def _buffer(number: int) -> str:
    return f"m{number}"


def _number(ranges: LiveRanges, call: in_place.InPlace) -> int:
    return next(iter(ranges.of(call.call.args[call.output])))


def _device_name(device: tuple[int, str]) -> str:
    index, scope = device
    return f"device {index}" if scope == "global" else f"device {index}, {scope}"


def _static_plan(module: IRModule, ranges: LiveRanges) -> int | None:
    """Bytes of storage that TVM's own planner takes; None for symbolic shapes."""
    planned = relax.transform.StaticPlanBlockMemory()(module)
    total = 0
    for binding in bindings_of(planned["main"].body):
        if is_op_call(binding.value, "relax.memory.alloc_storage"):
            size = binding.value.args[0].values[0]
            if not isinstance(size, tvm.tirx.IntImm):
                return None
            total += int(size)
    return total


def _per_thread(module: IRModule, ranges: LiveRanges) -> dict[str, int]:
    found = {}
    for call in ranges.calls:
        function = kernel_of(module, call)
        if function is not None and (nbytes := workspaces.per_thread(function)):
            found[call.name] = nbytes
    return found


def _rewrite(
    module: IRModule, ranges: LiveRanges, sharing: in_place.Sharing, arenas: Mapping[tuple[int, str], Arena]
) -> IRModule:
    """``main`` with views of the arenas instead of allocations, and variants of the kernels in place."""
    builder = relax.BlockBuilder(module.clone())
    views = _Views(ranges, sharing, arenas)
    work: dict[Var, list[in_place.InPlace]] = {}
    for found in sharing.calls:
        work.setdefault(found.call.var, []).append(found)
    variants: dict[tuple[Any, ...], GlobalVar] = {}

    def each(binding: relax.Binding) -> list[relax.Binding]:
        if binding.var in views.storage_of:
            return views.instead_of(binding)
        if binding.var in sharing.left_out:
            return []
        if binding.var not in work:
            return [binding]
        call = binding.value
        shared = {number: found.output for found in work[binding.var] for number in found.inputs}
        key = (call.op, tuple(sorted(shared.items())))
        if key not in variants:
            function = in_place.variant(module[call.op], shared)
            variants[key] = builder.add_func(function, f"{call.op.name_hint}_in_place")
        args = [arg for number, arg in enumerate(call.args) if number not in shared]
        return [relax.VarBinding(binding.var, tvm.ir.Call(variants[key], args, call.attrs, call.ty_args))]

    main = map_bindings(module["main"], each)
    main = map_bindings(main, lambda binding: [binding], views.first)
    module = builder.get()
    module.update_func(module.get_global_var("main"), main)
    return tvm.transform.Sequential(
        [
            relax.transform.Normalize(),
            relax.transform.CanonicalizeBindings(),  # variables that are other names of a view
            relax.transform.DeadCodeElimination(),
        ]
    )(module)


class _Views:
    """Tensors as views of storages; equal views are one variable, made once at the start of the function."""

    def __init__(
        self, ranges: LiveRanges, sharing: in_place.Sharing, arenas: Mapping[tuple[int, str], Arena]
    ):
        self.storage_of = {s.var: s for s in ranges.storages if not s.is_input and s.lower >= 0}
        self.first: list[relax.Binding] = []
        self._ranges, self._sharing, self._arenas = ranges, sharing, arenas
        self._shared = set(sharing.owner.values())
        self._bases: dict[Any, Var] = {}
        self._views: dict[tuple[Any, ...], Var] = {}

    def instead_of(self, binding: relax.Binding) -> list[relax.Binding]:
        """Bindings of the same variable that do not allocate; results of their own stay as they are."""
        owner = self._ranges.storages[self._sharing.find(self.storage_of[binding.var].number)]
        if owner.plannable:
            plan = self._arenas[owner.device].plan
            base = self._base(owner, owner.device, plan.peak)
            offset = plan.offsets[_buffer(owner.number)]
        elif owner.number in self._shared or _is_open(binding.var):
            # Other tensors were written over a result before; or it takes the memory of its largest size,
            # because the pool keeps a piece of memory for every size that was ever asked for.
            base, offset = self._base(owner, owner.number, owner.nbytes), 0
        else:
            return [binding]
        offset += self._sharing.offset(self.storage_of[binding.var].number)
        var = binding.var
        key = (base, offset, tuple(map(str, var.ty.shape)), str(var.ty.dtype))
        if key not in self._views:
            made = _view(base, offset, var)
            self.first += made
            self._views[key] = made[-1].var
        return [relax.VarBinding(var, self._views[key])]

    def _base(self, owner: Storage, key: Any, nbytes: int) -> Var:
        if key not in self._bases:
            size = relax.ShapeExpr([max(nbytes, 1)])
            call = relax.op.memory.alloc_storage(size, owner.device[0], owner.device[1], "uint8")
            self._bases[key] = relax.Var("arena" if owner.plannable else "result", relax.AnyType())
            self.first.append(relax.VarBinding(self._bases[key], call))
        return self._bases[key]


def _is_open(var: Var) -> bool:
    """Whether a tensor's shape is known at the call only."""
    return not all(isinstance(extent, tvm.tirx.IntImm) for extent in var.ty.shape)


def _view(storage: Var, offset: int, var: Var) -> list[relax.Binding]:
    """Bindings that end in a tensor like ``var`` at ``offset`` of ``storage``."""
    tensor = relax.op.memory.alloc_tensor(storage, offset, var.ty.shape, str(var.ty.dtype))
    bindings = [relax.VarBinding(relax.Var(var.name, var.ty), tensor)]
    if offset:  # kernels want the offset in the pointer
        moved = relax.op.memory.ensure_zero_offset(bindings[0].var)
        bindings.append(relax.VarBinding(relax.Var(var.name, var.ty), moved))
    return bindings
