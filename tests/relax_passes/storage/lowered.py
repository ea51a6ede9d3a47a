"""Functions with planned memory, run by the virtual machine."""

from __future__ import annotations

from hetero_tvm.host.tvm import relax, tvm
from hetero_tvm.relax_passes.pipeline import lower
from hetero_tvm.targets.registry import parse_target

TARGET = parse_target("cpu")


def finish(planned):
    """The steps of ``lower`` after planning."""
    passes = (
        relax.transform.LowerAllocTensor(),
        relax.transform.KillAfterLastUse(),
        relax.transform.LowerRuntimeBuiltin(),
        relax.transform.ComputePrimValue(),
        relax.transform.VMShapeLower(),
        relax.transform.AttachGlobalSymbol(),
    )
    return tvm.transform.Sequential(list(passes))(planned)


def machine(lowered):
    return relax.VirtualMachine(TARGET.compile(lowered).executable, tvm.cpu())


def legal(mod):
    passes = (relax.transform.LegalizeOps(), relax.transform.RewriteDataflowReshape())
    return tvm.transform.Sequential(list(passes))(mod)


def planned(mod):
    """(virtual machine, plan) of a module of Relax operators."""
    lowered, plan = lower(legal(mod))
    plan.verify()
    return machine(lowered), plan


def tensors(*arrays):
    return [tvm.runtime.tensor(array) for array in arrays]


def allocations(vm, arguments):
    """Bytes of each storage that one call takes, as the virtual machine's allocator is asked for them."""
    sizes = []

    def watch(_function, name, before, _result, *args):
        if before and name == "vm.builtin.alloc_storage":
            sizes.append(int(args[1][0]))
        return 0

    vm.set_instrument(watch)
    vm["main"](*arguments)
    vm.set_instrument(None)
    return sizes
