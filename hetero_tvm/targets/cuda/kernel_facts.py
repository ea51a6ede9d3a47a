"""Static facts of compiled kernels: registers, stack, shared memory, launch shape, occupancy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypedDict

from hetero_tvm.machines.gpu import WARP, GpuModel, model_named
from hetero_tvm.targets.cuda import cubin
from hetero_tvm.targets.cuda.codegen import DeviceModule, Launch

_REGISTER_UNIT = 256  # registers are given to a warp in portions of so many
_SHARED_RESERVED = 1 << 10  # that the driver takes of each block's shared memory ...
_RESERVED_IN_CUBIN = 90  # ... and which cubins count as the kernel's own from this capability on


class Facts(TypedDict):
    """Facts of one kernel.

    Registers of a thread; bytes of its stack (spills live there) and of a block's shared memory; threads of a
    block, grid and occupancy, None where they are only known at run time.
    """

    registers: int
    stack: int
    shared: int
    threads: int | None
    grid: list[int | None] | None
    occupancy: float | None


def of_module(module: DeviceModule) -> dict[str, Facts]:
    """Registers, stack, shared memory, threads and occupancy of each kernel of one architecture.

    Empty for code that is not a cubin (the CPU emulation's).
    """
    if module.binary[:4] != b"\x7fELF":
        return {}
    model = model_named(module.arch)
    result: dict[str, Facts] = {}
    for name, kernel in cubin.kernels_of(module.binary).items():
        launch = module.launches.get(name)
        threads = threads_of(launch)
        dynamic = launch.dynamic_shared if launch else None
        declared = kernel.shared - (_SHARED_RESERVED if model.capability >= _RESERVED_IN_CUBIN else 0)
        shared = max(0, declared) + (dynamic or 0)
        result[name] = {
            "registers": kernel.registers,
            "stack": kernel.stack,
            "shared": shared,
            "threads": threads,
            "grid": list(launch.grid) if launch else None,
            "occupancy": None if threads is None else occupancy(model, threads, kernel.registers, shared),
        }
    return result


def worst(kernels: Iterable[Facts]) -> Facts:
    """Facts of a candidate with several kernels (a split reduction has two): the ones that limit it most."""
    every = list(kernels)
    known = [kernel["occupancy"] for kernel in every if kernel["occupancy"] is not None]
    largest = {name: max(kernel[name] for kernel in every) for name in ("registers", "stack", "shared")}
    return {**every[0], **largest, "occupancy": min(known) if known else None}


def threads_of(launch: Launch | None) -> int | None:
    """Threads of a block; None where they are only known at run time."""
    if launch is None or None in launch.block:
        return None
    x, y, z = launch.block
    return x * y * z


def occupancy(model: GpuModel, threads: int, registers: int, shared: int) -> float:
    """Resident warps of a multiprocessor as a share of the most it can hold; 0 when a block does not fit.

    The limits of the CUDA occupancy calculator: threads, blocks, registers, shared memory.
    """
    warps = -(-threads // WARP)
    per_warp = -(-max(registers, 1) * WARP // _REGISTER_UNIT) * _REGISTER_UNIT
    limits = [
        model.threads_per_sm // (warps * WARP),
        model.blocks_per_sm,
        model.registers_per_sm // (per_warp * warps),
    ]
    if shared > model.shared_per_block or threads > 1024:
        return 0.0
    limits.append(model.shared_per_sm // (shared + _SHARED_RESERVED))
    return min(limits) * warps * WARP / model.threads_per_sm
