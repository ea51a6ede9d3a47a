"""Code generation: from scheduled kernels to an executable with machine code of one architecture."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from hetero_tvm.codegen.cancellation import keep_cancellation
from hetero_tvm.codegen.extremes import begin_at_infinity
from hetero_tvm.codegen.quotients.divided_indices import divide_what_rises
from hetero_tvm.codegen.quotients.divisions import DIVISIONS, reads_memory
from hetero_tvm.codegen.wrapping import Fence, wrapping_pass
from hetero_tvm.errors import HeteroTVMError
from hetero_tvm.host.tvm import (
    Executable,
    Expr,
    IRModule,
    PrimFunc,
    Stmt,
    TVMTarget,
    compilation_pipeline,
    relax,
    s_tir_pipeline,
    tirx,
    tvm,
    tvm_ffi,
)
from hetero_tvm.runtime.quiet import quiet_fd2
from hetero_tvm.targets.cuda import compilers, cuda_module
from hetero_tvm.targets.cuda.thread_binding import check_bound
from hetero_tvm.targets.cuda.toolchain import FENCE

PIPELINE = "hetero_tvm_cuda"


@dataclass(frozen=True)
class Launch:
    """Launch of a kernel: extents of grid and block, bytes of shared memory that it declares.

    None stands for an extent or size that is only known at run time.
    """

    grid: tuple[int | None, int | None, int | None]
    block: tuple[int | None, int | None, int | None]
    static_shared: int | None
    dynamic_shared: int | None


@dataclass
class DeviceModule:
    """CUDA C++, machine code and launches of the kernels of one module, for one architecture."""

    arch: str
    source: str = ""
    binary: bytes = b""
    launches: dict[str, Launch] = field(default_factory=dict)


_collected: ContextVar[list[DeviceModule] | None] = ContextVar("hetero_tvm_device_modules", default=None)
_rehearsing: ContextVar[bool] = ContextVar("hetero_tvm_rehearsing", default=False)
_current: ContextVar[DeviceModule | None] = ContextVar("hetero_tvm_device_module", default=None)


@contextlib.contextmanager
def collect(rehearsal: bool = False) -> Iterator[list[DeviceModule]]:
    """Note everything that is compiled for a GPU in this context, here and in the contexts around it.

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
def _build(module: IRModule, target: TVMTarget) -> Any:
    """Generate code inside the target's scope, and note the launches."""
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
    """Compile CUDA C++ for the architecture of the module in the making."""
    made = _current.get()
    if made is None:  # somebody else's build in this process
        return _stock_compile(code)
    made.source = str(code)
    if _rehearsing.get():
        return b"\x7fELF"
    made.binary = compilers.find().cubin(made.source, made.arch)
    return made.binary


def launches_of(module: IRModule) -> dict[str, Launch]:
    """Launch dimensions and declared shared memory of every kernel of a split device module."""
    result = {}
    for variable, function in module.functions.items():
        symbol = function.attrs.get("global_symbol", variable.name_hint)
        result[str(symbol)] = _LaunchReader().read(function)
    return result


class _LaunchReader:
    """Collects the thread extents and shared buffers of one kernel."""

    def __init__(self) -> None:
        self.extents: dict[str, int | None] = {}
        self.shared: dict[str, int | None] = {}

    def read(self, function: PrimFunc) -> Launch:
        """The launch of a kernel."""
        tvm_ffi.structural_walk(function.body, (tirx.AttrStmt, self._extent), order="post")
        tvm_ffi.structural_walk(function.body, (tirx.AllocBuffer, self._buffer), order="post")
        grid, block = (
            tuple(self.extents.get(f"{kind}Idx.{axis}", 1) for axis in "xyz") for kind in ("block", "thread")
        )
        static, dynamic = self.shared.get("shared", 0), self.shared.get("shared.dyn", 0)
        return Launch(grid, block, static_shared=static, dynamic_shared=dynamic)

    def _extent(self, node: Stmt) -> None:
        if str(node.attr_key) == "thread_extent":
            self.extents[str(node.node.thread_tag)] = _number(node.value)

    def _buffer(self, node: Stmt) -> None:
        scope = str(node.buffer.scope())
        if scope.startswith("shared"):
            dtype = tvm.DataType(str(node.buffer.dtype))
            size: int | None = (dtype.bits * dtype.lanes + 7) // 8
            for extent in node.buffer.shape:
                number = _number(extent)
                size = None if size is None or number is None else size * number
            known = self.shared.get(scope, 0)
            self.shared[scope] = None if size is None or known is None else known + size


def _number(value: Expr | int) -> int | None:
    """A constant as a number; None for other expressions."""
    if isinstance(value, int):
        return value
    return int(value) if isinstance(value, tirx.IntImm) else None


@tirx.transform.prim_func_pass(opt_level=0, name="hetero_tvm.DivideAsIfWrapped")
def divide_as_if_wrapped(func: PrimFunc, _module: IRModule, _context: Any) -> PrimFunc:
    """Integer divisions by values in memory with a result for every divisor, the CPU's one."""
    return func.with_body(tvm_ffi.structural_map(func.body, (DIVISIONS, _division), order="post"))


def _division(division: Expr) -> Expr:
    """``division`` by 1 where the divisor is 0 or -1, and what -1 makes of the dividend."""
    a, b, dtype = division.a, division.b, str(division.ty.dtype)
    if "int" not in dtype or "x" in dtype or not reads_memory(b):
        return division
    zero, one = tirx.const(0, dtype), tirx.const(1, dtype)
    if dtype.startswith("uint"):
        return type(division)(a, tirx.Select(tirx.EQ(b, zero), one, b))
    negates = tirx.EQ(b, tirx.const(-1, dtype))
    result = type(division)(a, tirx.Select(tirx.any(tirx.EQ(b, zero), negates), one, b))
    is_quotient = isinstance(division, tirx.Div | tirx.FloorDiv)
    return tirx.Select(negates, zero - a, result) if is_quotient else result


def _fence(value: Expr) -> Expr:
    """``value``, behind a function whose result the CUDA compiler knows nothing of."""
    return tirx.call_pure_extern(str(value.ty.dtype), FENCE, value)


# --- lowering ----------------------------------------------------------------------------------
def _pipeline_factory() -> tuple[Any, Any, Any]:
    """Lowering, host and device passes, as TVM's registry of pipelines wants them."""
    lower, finalize_host, _ = s_tir_pipeline.default_s_tir_pipeline()

    @tvm.transform.module_pass(opt_level=0, name="hetero_tvm.LowerForCuda")
    def lower_for_cuda(module: IRModule, context: Any) -> IRModule:
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

    semantics = [
        begin_at_infinity,
        wrapping_pass(Fence(_fence, shows_signs=False)),
        divide_as_if_wrapped,
        keep_cancellation,
    ]
    lowering = [*semantics, divide_what_rises, lower_for_cuda]
    return tvm.ir.transform.Sequential(lowering), finalize_host, finalize_device


compilation_pipeline.register_tir_pipeline(PIPELINE, _pipeline_factory)


def compile_kernels(module: PrimFunc | IRModule, target: TVMTarget) -> Any:
    """A scheduled PrimFunc, or a module of them, compiled for one architecture: a runtime module."""
    cuda_module.enable_module()
    if isinstance(module, tirx.PrimFunc):
        module = tvm.IRModule({"main": module.with_attr("global_symbol", "main")})
    check_bound(module)
    return tvm.tirx.build(module, target=target, pipeline=PIPELINE)


def rejects(kernel: PrimFunc, target: TVMTarget) -> str | None:
    """Reason why a scheduled PrimFunc does not become CUDA C++; None when it does.  Nothing is compiled."""
    try:
        with collect(rehearsal=True), quiet_fd2():
            compile_kernels(kernel.with_attr("target", target), target)
    except HeteroTVMError as error:
        return error.message
    except Exception as error:  # TVM raises many kinds
        lines = [line.strip() for line in str(error).splitlines() if line.strip(" ^~")]
        return next((line for line in lines if "Check failed" in line), lines[0] if lines else repr(error))
    return None


def compile_executable(module: IRModule, target: TVMTarget) -> Executable:
    """Executable of lowered Relax with scheduled kernels, each with its target attribute."""
    cuda_module.enable_module()
    check_bound(module)
    return relax.build(module, target, relax_pipeline=None, tir_pipeline=PIPELINE)
