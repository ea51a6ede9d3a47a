"""From scheduled kernels to an executable with machine code for each architecture in it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from hetero_tvm.errors import BuildError, HeteroTVMError
from hetero_tvm.host.tvm import compilation_pipeline, s_tir_pipeline, tirx, tvm, tvm_ffi
from hetero_tvm.runtime.cuda import devices as cuda_runtime
from hetero_tvm.runtime.quiet import quiet_fd2
from hetero_tvm.targets.cuda import compilers, driver

PIPELINE = "hetero_tvm_cuda"


@dataclass(frozen=True)
class Launch:
    """How a kernel is launched: extents of grid and block, bytes of shared memory.

    ``static_shared`` and ``dynamic_shared`` are what the kernel declares; None where an extent or a
    size is only known at run time.
    """

    grid: tuple[int | None, int | None, int | None]
    block: tuple[int | None, int | None, int | None]
    static_shared: int | None
    dynamic_shared: int | None


@dataclass
class DeviceModule:
    """What was compiled for one architecture."""

    arch: str
    source: str = ""
    binary: bytes = b""
    launches: dict[str, Launch] = field(default_factory=dict)


_collected: ContextVar[list[DeviceModule] | None] = ContextVar("hetero_tvm_device_modules", default=None)
_rehearsing: ContextVar[bool] = ContextVar("hetero_tvm_rehearsing", default=False)
_current: ContextVar[DeviceModule | None] = ContextVar("hetero_tvm_device_module", default=None)


@contextlib.contextmanager
def collect(rehearsal: bool = False) -> Iterator[list[DeviceModule]]:
    """While open, everything that is compiled for a GPU in this context is noted, here and further out.

    In a ``rehearsal`` kernels only become CUDA C++: nothing is compiled, runs, or is noted further out.
    """
    modules: list[DeviceModule] = []
    rehearsal = rehearsal or _rehearsing.get()
    tokens = _collected.set(modules), _rehearsing.set(rehearsal)
    try:
        yield modules
    finally:
        _collected.reset(tokens[0])
        _rehearsing.reset(tokens[1])
        if (outer := _collected.get()) is not None and not rehearsal:
            outer.extend(modules)


# --- the two doors of TVM's CUDA code generator ------------------------------------------------
_build_cuda = tvm.get_global_func("target.build.cuda")
_stock_compile = tvm.get_global_func("tvm_callback_cuda_compile")


@tvm_ffi.register_global_func("target.build.cuda", override=True)
def _build(module: Any, target: Any) -> Any:
    """Code generation inside the target's scope, with the launches noted."""
    made = DeviceModule(str(target.attrs["arch"]), launches=launches_of(module))
    token = _current.set(made)
    try:
        with target:
            result = _build_cuda(module, target)
    finally:
        _current.reset(token)
    if (modules := _collected.get()) is not None:
        modules.append(made)
    return result


@tvm_ffi.register_global_func("tvm_callback_cuda_compile", override=True)
def _compile(code: Any) -> bytes:
    made = _current.get()
    if made is None:  # somebody else's build in this process
        return _stock_compile(code)
    made.source = str(code)
    if _rehearsing.get():
        return b"\x7fELF"
    made.binary = compilers.find().cubin(made.source, made.arch)
    return made.binary


def launches_of(module: Any) -> dict[str, Launch]:
    """Launch dimensions and declared shared memory of every kernel of a split device module."""
    result = {}
    for variable, function in module.functions.items():
        symbol = function.attrs.get("global_symbol", variable.name_hint)
        result[str(symbol)] = _LaunchReader().read(function)
    return result


class _LaunchReader:
    def __init__(self) -> None:
        self.extents: dict[str, int | None] = {}
        self.shared: dict[str, int | None] = {}

    def read(self, function: Any) -> Launch:
        tvm_ffi.structural_walk(function.body, (tirx.AttrStmt, self._extent), order="post")
        tvm_ffi.structural_walk(function.body, (tirx.AllocBuffer, self._buffer), order="post")
        grid, block = (
            tuple(self.extents.get(f"{kind}Idx.{axis}", 1) for axis in "xyz") for kind in ("block", "thread")
        )
        return Launch(grid, block, self.shared.get("shared", 0), self.shared.get("shared.dyn", 0))

    def _extent(self, node: Any) -> None:
        if str(node.attr_key) == "thread_extent":
            self.extents[str(node.node.thread_tag)] = _number(node.value)

    def _buffer(self, node: Any) -> None:
        scope = str(node.buffer.scope())
        if scope.startswith("shared"):
            dtype = tvm.DataType(str(node.buffer.dtype))
            size: int | None = (dtype.bits * dtype.lanes + 7) // 8
            for extent in node.buffer.shape:
                number = _number(extent)
                size = None if size is None or number is None else size * number
            known = self.shared.get(scope, 0)
            self.shared[scope] = None if size is None or known is None else known + size


def _number(value: Any) -> int | None:
    if isinstance(value, int):
        return value
    return int(value) if isinstance(value, tirx.IntImm) else None


# --- lowering ----------------------------------------------------------------------------------
def _pipeline_factory() -> tuple[Any, Any, Any]:
    lower, finalize_host, _ = s_tir_pipeline.default_s_tir_pipeline()

    @tvm.transform.module_pass(opt_level=0, name="hetero_tvm.LowerForCuda")
    def lower_for_cuda(module: Any, context: Any) -> Any:
        # Common subexpressions are left to the CUDA compiler: they would hide threadIdx.x from the
        # lowering of warp memory.  Copies to shared memory that can be asynchronous are.
        config = {**dict(context.config), "tirx.disable_cse_tir": True, "tirx.use_async_copy": True}
        with tvm.transform.PassContext(opt_level=context.opt_level, config=config):
            return lower(module)

    def finalize_device() -> Any:
        # One run lowers one warp buffer of a sequence and leaves the others as (slow) stack arrays.
        passes = [tirx.transform.LowerWarpMemory()] * 6
        return tvm.ir.transform.Sequential(
            [*passes, tirx.transform.StmtSimplify(), tirx.transform.LowerIntrin()]
        )

    return lower_for_cuda, finalize_host, finalize_device


compilation_pipeline.register_tir_pipeline(PIPELINE, _pipeline_factory)


def compile_kernels(module: Any, target: Any) -> Any:
    """Compile a scheduled PrimFunc, or an IRModule of them, for one architecture; a runtime module."""
    driver.enable_module()
    if isinstance(module, tirx.PrimFunc):
        module = tvm.IRModule({"main": module.with_attr("global_symbol", "main")})
    check_bound(module)
    return tvm.tirx.build(module, target=target, pipeline=PIPELINE)


def rejects(kernel: Any, target: Any) -> str | None:
    """Why a scheduled PrimFunc does not become CUDA C++; None when it does.  Nothing is compiled."""
    try:
        with collect(rehearsal=True), quiet_fd2():
            compile_kernels(kernel.with_attr("target", target), target)
    except HeteroTVMError as error:
        return error.message
    except Exception as error:  # TVM raises many kinds
        lines = [line.strip() for line in str(error).splitlines() if line.strip(" ^~")]
        return next((line for line in lines if "Check failed" in line), lines[0] if lines else repr(error))
    return None


def compile_executable(module: Any, target: Any) -> Any:
    """From lowered Relax with scheduled kernels (each with its target attribute) to an executable."""
    from hetero_tvm.host.tvm import relax

    driver.enable_module()
    check_bound(module)
    return relax.build(module, target, relax_pipeline=None, tir_pipeline=PIPELINE)


@tvm.transform.module_pass(opt_level=0, name="hetero_tvm.UseCudaGraph")
def use_cuda_graph(module: Any, context: Any) -> Any:
    """Runs of kernels between planned buffers become CUDA graphs, captured at the first call.

    ``main`` stays beside it as ``main_eager``, kernel after kernel, for devices and users that cannot or
    will not capture; kernels and constants are shared.
    """
    from hetero_tvm.host.tvm import relax

    eager = module["main"]
    config = {**dict(context.config), "relax.backend.use_cuda_graph": True}
    with tvm.transform.PassContext(opt_level=context.opt_level, config=config):
        module = relax.transform.RewriteCUDAGraph()(module)
    module = _with_results(module)
    if any("cuda_graph_capture" in variable.name_hint for variable in module.functions):
        name = "main" + cuda_runtime.EAGER
        module[tvm.ir.GlobalVar(name)] = eager.with_attr("global_symbol", name)
    return module


def _with_results(module: Any) -> Any:
    """Captured regions that only write to views of the arena return one of these views.

    The virtual machine cannot run a nested function without a result: it would write to its caller's
    void register.
    """
    from hetero_tvm.host.tvm import relax
    from hetero_tvm.relax_passes.rewriting.bindings import map_bindings

    types = {}
    for variable, function in list(module.functions.items()):
        if "cuda_graph_capture" not in variable.name_hint or len(function.ret_ty.fields):
            continue
        first = function.params[0]
        types[variable] = relax.TupleType([first.ty])
        body = relax.SeqExpr(function.body.blocks, relax.Tuple([first]))
        module[variable] = relax.Function(
            function.params, body, types[variable], function.is_pure, function.attrs
        )

    def each(binding: Any) -> list[Any]:
        call = binding.value
        if not isinstance(call, tvm.ir.Call) or str(getattr(call.op, "name", "")) != _CALL_BUILTIN:
            return [binding]
        captured = call.args[1].fields[0]
        if captured not in types:
            return [binding]
        typed = tvm.ir.Call(call.op, call.args, call.attrs, [types[captured]])
        return [relax.VarBinding(relax.Var(binding.var.name, types[captured]), typed)]

    for variable, function in list(module.functions.items()):
        if types and isinstance(function, relax.Function) and variable not in types:
            module[variable] = map_bindings(function, each)
    return relax.transform.Normalize()(module)


_CALL_BUILTIN = "relax.call_builtin_with_ctx"


# --- nothing unscheduled -----------------------------------------------------------------------
def check_bound(module: Any) -> None:
    """Refuse kernels with a store outside of all threads: such a kernel cannot run on a GPU.

    Raises
    ------
    BuildError : names all of them.
    """
    bad = [
        variable.name_hint
        for variable, function in module.functions.items()
        if isinstance(function, tirx.PrimFunc) and not is_bound(function)
    ]
    if bad:
        raise BuildError(
            "kernels reached code generation without a schedule for a GPU",
            problems=sorted(bad),
            hint="this is a fault of the target: report the kernels above",
        )


def is_bound(function: Any) -> bool:
    """Whether every store of a function happens inside a loop or region that threads run."""
    return not _unbound_stores(function.body, False)


def _unbound_stores(node: Any, bound: bool) -> bool:
    if bound or node is None:
        return False
    if isinstance(node, tirx.BufferStore):
        return True
    if isinstance(node, tirx.SeqStmt):
        return any(_unbound_stores(part, bound) for part in node.seq)
    if isinstance(node, tirx.For):
        return _unbound_stores(node.body, node.kind == tirx.ForKind.THREAD_BINDING)
    if isinstance(node, tirx.AttrStmt):
        return _unbound_stores(node.body, str(node.attr_key) in ("thread_extent", "launch_thread"))
    if isinstance(node, tirx.IfThenElse):
        return _unbound_stores(node.then_case, bound) or _unbound_stores(node.else_case, bound)
    for name in ("block", "init", "body"):
        part = getattr(node, name, None)
        if part is not None and _unbound_stores(part, bound):
            return True
    return False
