"""The lowering pipeline from TensorIR to machine code.

It is TVM's own pipeline with thirteen additions: maxima and minima keep NaN and infinities, integers wrap
around where they overflow, integer divisions by values in memory are ones that the processor does not trap
at, differences of floats are not cancelled, functions of functions, and choices that hang on choices, are
computed one after the other, calls of exp, erf, tanh and the like become vector polynomials before loops are
vectorised, bfloat16 is converted where TVM loses it, quotients and remainders of falling indices are written
by those of rising ones, those of counts have no correction for negative numbers, unsigned numbers of 64 bits
become floats by way of signed ones, the bits of zero are a zero of their type, and small constant-size
buffers stay on the stack.  Every compilation, the tuner's candidates included, must use it, or candidates are
ranked on other code than the one that ships.
"""

from __future__ import annotations

from typing import Any

from hetero_tvm.codegen import double_math, vector_functions, vector_math
from hetero_tvm.codegen.bfloat16 import convert_once
from hetero_tvm.codegen.cancellation import keep_cancellation
from hetero_tvm.codegen.extremes import begin_at_infinity, keep_nan
from hetero_tvm.codegen.quotients.counted_quotients import divide_counts
from hetero_tvm.codegen.quotients.divided_indices import divide_what_rises
from hetero_tvm.codegen.quotients.divisions import divide_without_traps
from hetero_tvm.codegen.steps.choice_steps import choose_in_steps
from hetero_tvm.codegen.steps.function_steps import compute_in_steps, give_each_lane_its_steps
from hetero_tvm.codegen.wrapping import wrap_around
from hetero_tvm.host.tvm import (
    Buffer,
    Call,
    Expr,
    IRModule,
    PrimFunc,
    SBlock,
    TVMTarget,
    compilation_pipeline,
    s_tir,
    s_tir_pipeline,
    tirx,
    tvm,
    tvm_ffi,
    with_body,
)

PIPELINE = "hetero_tvm"
INDEX_ERROR, DIVISION_ERROR = "IndexError", "ZeroDivisionError"
"""Kinds of the assertions that stay in the code: they check values that a user gives at run time."""
EXACT_BUFFERS = "hetero_tvm.exact_buffers"
"""Attribute of kernels of run-time sizes whose buffers are as large as what is used of them."""
LINE = 64
"""Bytes of a cache line."""
STACK_LIMIT = 64 << 10
"""Largest buffer in bytes that is kept on the stack."""


def _bytes_of(buffer: Buffer) -> int | None:
    """Size of a buffer; None when it is not constant."""
    count = 1
    for extent in buffer.shape:
        if not isinstance(extent, tirx.IntImm):
            return None
        count *= int(extent)
    dtype = tvm.DataType(str(buffer.dtype))
    return count * ((dtype.bits * dtype.lanes + 7) // 8)


def _keep_on_stack(alloc: tirx.AllocBuffer) -> tirx.Stmt:
    size = _bytes_of(alloc.buffer)
    if size is None or size > STACK_LIMIT or not size:  # TVM has no stack slot without bytes
        return alloc
    keep = {**dict(alloc.annotations or {}), "disable_lower_builtin": tirx.const(1, "bool")}
    lines = _of_lines(alloc.buffer, size)
    if lines is None:
        return tirx.AllocBuffer(alloc.buffer, keep, alloc.span)
    view = tirx.DeclBuffer(alloc.buffer, data=lines.data)
    return tirx.SeqStmt([tirx.AllocBuffer(lines, keep, alloc.span), view])


def _of_lines(buffer: Buffer, size: int) -> Buffer | None:
    """Memory for ``buffer`` as vectors of a whole cache line, which LLVM puts where a line starts.

    TVM asks for 16 bytes: every vector of 64 may then lie across two lines, and every row of a tile.
    """
    dtype = tvm.DataType(str(buffer.dtype))
    plain = str(dtype).rstrip("0123456789") in ("float", "bfloat", "int", "uint") and dtype.bits >= 8
    if size < LINE or dtype.lanes != 1 or not plain:
        return None
    wide = f"{dtype}x{LINE * 8 // dtype.bits}"
    return tirx.decl_buffer((-(-size // LINE),), wide, f"{buffer.name}_lines", scope=buffer.scope())


@tirx.transform.prim_func_pass(opt_level=0, name="hetero_tvm.KeepSmallBuffersOnStack")
def keep_small_buffers_on_stack(func: PrimFunc, _mod: IRModule, _ctx: Any) -> PrimFunc:
    """Make small constant-size buffers stack slots instead of heap workspaces.

    TVM lowers even a register tile to a pair of runtime calls, and LLVM can then not always prove
    that the accumulators do not alias: it stores them at every step (half the speed).
    """
    return with_body(func, tvm_ffi.structural_map(func.body, (tirx.AllocBuffer, _keep_on_stack)))


_POLYNOMIALS = {
    "tirx.exp": vector_math.exp,
    "tirx.erf": vector_math.erf,
    "tirx.tanh": vector_math.tanh,
    "tirx.sigmoid": vector_math.sigmoid,
    "tirx.log": vector_functions.log,
    "tirx.log10": vector_functions.log10,
    "tirx.log1p": vector_functions.log1p,
    "tirx.atanh": vector_functions.atanh,
    "tirx.sin": vector_functions.sin,
    "tirx.cos": vector_functions.cos,
    "tirx.tan": vector_functions.tan,
    "tirx.atan": vector_functions.atan,
    "tirx.asin": vector_functions.asin,
    "tirx.acos": vector_functions.acos,
    "tirx.nearbyint": vector_functions.nearbyint,
    "tirx.fmod": vector_functions.fmod,
    "tirx.isnan": vector_functions.is_nan,
}


_OF_DOUBLES = {
    "tirx.exp": double_math.exp,
    "tirx.tanh": double_math.tanh,
    "tirx.sigmoid": double_math.sigmoid,
}


def _beyond_one(value: Expr) -> Expr | None:
    """y of ``1 + y``, whose logarithm is rounded to nothing where y is small; None of anything else."""
    if isinstance(value, tirx.Add):
        for one, rest in ((value.a, value.b), (value.b, value.a)):
            if isinstance(one, tirx.FloatImm) and float(one.value) == 1.0:
                return rest
    return None


def _vector_math(call: Call) -> Expr:
    """``call``, or what replaces it."""
    name = call.op.name if isinstance(call.op, tvm.ir.Op) else None
    if (
        name == "tirx.log"
        and str(call.ty.dtype) == "float32"
        and (rest := _beyond_one(call.args[0])) is not None
    ):
        return vector_functions.log1p(rest)
    if name in _POLYNOMIALS and str(call.args[0].ty.dtype) == "float32":
        return _POLYNOMIALS[name](*call.args)
    if name in _OF_DOUBLES and str(call.ty.dtype) == "float64":
        return _OF_DOUBLES[name](*call.args)
    if name in ("tirx.erf", "tirx.atanh") and str(call.ty.dtype) == "float64":
        # TVM's own erf has float32's accuracy, and its atanh loses what is small beside 1.
        return tirx.call_pure_extern("float64", name.removeprefix("tirx."), call.args[0])
    if name == "tirx.pow" and isinstance(call.args[1], tirx.FloatImm):
        base, power = call.args[0], float(call.args[1].value)
        if power == 2.0:
            return base * base
        if power == 3.0:
            return base * base * base
    if name == "tirx.pow" and str(call.ty.dtype) == "float32":
        return vector_functions.power(*call.args)
    return call


def _vector_remainder(remainder: tirx.Mod) -> Expr:
    """``remainder`` of float32 numbers as an expression; LLVM would call ``fmodf``."""
    if str(remainder.ty.dtype) != "float32":
        return remainder
    return vector_functions.fmod(remainder.a, remainder.b)


def _by_signed_numbers(cast: tirx.Cast) -> Expr:
    """A conversion of uint64 to a float as one of int64: LLVM ends the process at vectors of the former
    where a processor has AVX-512 and is not to use its instructions for 64-bit integers.

    Beyond int64, half the number is converted, whose lowest bit says that something was cut off: rounding
    sees it, and a float doubles exactly.
    """
    value, dtype = cast.value, str(cast.ty.dtype)
    if str(value.ty.dtype) != "uint64" or not dtype.startswith("float"):
        return cast
    one = tirx.const(1, "uint64")
    half = tirx.bitwise_or(tirx.shift_right(value, one), tirx.bitwise_and(value, one))
    # By its bits: TVM folds comparisons of the signed one with 0.
    beyond = tirx.EQ(tirx.shift_right(value, tirx.const(63, "uint64")), one)
    doubled = tirx.Cast(dtype, tirx.Cast("int64", half)) * tirx.const(2, dtype)
    return tirx.Select(beyond, doubled, tirx.Cast(dtype, tirx.Cast("int64", value)))


@tirx.transform.prim_func_pass(opt_level=0, name="hetero_tvm.UseVectorMath")
def use_vector_math(func: PrimFunc, _mod: IRModule, _ctx: Any) -> PrimFunc:
    """Replace functions of float32, and some of float64, by polynomials, and small powers by products.

    LLVM would call libm once per lane.  It converts no uint64, either.
    """
    func = choose_in_steps(compute_in_steps(func, (*_POLYNOMIALS, "tirx.pow")))
    body = tvm_ffi.structural_map(func.body, (tirx.Mod, _vector_remainder), order="post")
    body = tvm_ffi.structural_map(body, (tirx.Cast, _by_signed_numbers), order="post")
    return with_body(func, tvm_ffi.structural_map(body, (tvm.ir.Call, _vector_math), order="post"))


def _zero(call: Call) -> Expr:
    """The bits of 0 in another type, which are its 0; other calls as they are."""
    if not isinstance(call.op, tvm.ir.Op) or call.op.name != "tirx.reinterpret":
        return call
    bits = call.args[0].value if isinstance(call.args[0], tirx.Broadcast) else call.args[0]
    is_zero = isinstance(bits, tirx.IntImm) and not int(bits)
    return tirx.const(0, str(call.ty.dtype)) if is_zero else call


@tirx.transform.prim_func_pass(opt_level=0, name="hetero_tvm.TakeBitsOfZero")
def take_bits_of_zero(func: PrimFunc, _mod: IRModule, _ctx: Any) -> PrimFunc:
    """Replace the bits of 0 by a 0 of their type: TVM's code generator refuses them but for pointers.

    The simplifier makes 0 of what lies behind a fence: ``x - x``, or the first step of an unrolled ``x * i``.
    """
    return with_body(func, tvm_ffi.structural_map(func.body, (tvm.ir.Call, _zero), order="post"))


@tvm.transform.module_pass(opt_level=0, name="hetero_tvm.SkipArgumentChecks")
def skip_argument_checks(module: IRModule, _context: Any) -> IRModule:
    """Remove assertions, but for those about values that are known at run time only."""
    result = tirx.transform.SkipAssert()(module)
    for variable, func in module.functions.items():
        kept: list[tirx.AssertStmt] = []

        def without_argument_check(stmt: tirx.AssertStmt, kept: list[tirx.AssertStmt] = kept) -> tirx.Stmt:
            if str(stmt.error_kind.value) in (INDEX_ERROR, DIVISION_ERROR):
                kept.append(stmt)
                return stmt
            return tirx.Evaluate(tirx.const(0, "int32"))

        if isinstance(func, tirx.PrimFunc):
            body = tvm_ffi.structural_map(func.body, (tirx.AssertStmt, without_argument_check))
            if kept:
                result.update_func(variable, with_body(func, body))
    return result


ARGUMENT_ALIGNMENT = 16
"""Bytes at multiples of which kernels take their arguments: what ``malloc``, and so NumPy, gives."""


def _less_aligned(attribute: tirx.AttrStmt) -> tirx.AttrStmt:
    if str(attribute.attr_key) != "storage_alignment":
        return attribute
    alignment = tirx.const(ARGUMENT_ALIGNMENT, "int32")
    return tirx.AttrStmt(attribute.node, attribute.attr_key, alignment, attribute.body)


@tirx.transform.prim_func_pass(opt_level=0, name="hetero_tvm.TakeWhatMallocGives")
def take_what_malloc_gives(func: PrimFunc, _mod: IRModule, _ctx: Any) -> PrimFunc:
    """Assume no more of the place of an argument than every allocator gives.

    Unaligned vector instructions are as fast where memory is aligned, which the arena is; an input that lies
    where NumPy put it need not be copied for them.
    """
    return with_body(func, tvm_ffi.structural_map(func.body, (tirx.AttrStmt, _less_aligned)))


def _without_pragma(attribute: tirx.AttrStmt) -> tirx.Stmt:
    return attribute.body if str(attribute.attr_key) == "pragma_scope" else attribute


@tirx.transform.prim_func_pass(opt_level=0, name="hetero_tvm.LeaveOutPragmas")
def leave_out_pragmas(func: PrimFunc, _mod: IRModule, _ctx: Any) -> PrimFunc:
    """Take away the pragma of TVM's scatters, which code generation does not know, and warns about."""
    return with_body(func, tvm_ffi.structural_map(func.body, (tirx.AttrStmt, _without_pragma), order="post"))


def _states_its_buffers(func: PrimFunc) -> bool:
    """Whether the buffers of a kernel are as large as it wants them.

    Those of a kernel that is written as loops are, with what it leaves free between rows; a schedule, which
    works on blocks, begins with whole tensors.  Where sizes come at run time, exact and constant ones are.
    """
    if func.attrs and EXACT_BUFFERS in func.attrs:
        return True
    sizes: list[int | None] = []
    blocks: list[SBlock] = []

    def of_statement(alloc: tirx.AllocBuffer) -> tirx.AllocBuffer:
        sizes.append(_bytes_of(alloc.buffer))
        return alloc

    tvm_ffi.structural_map(func.body, (SBlock, lambda block: blocks.append(block) or block))
    whole = [extent for one in func.params if isinstance(one, Buffer) for extent in one.shape]
    if all(isinstance(extent, tirx.IntImm) for extent in whole):
        return not blocks
    sizes.extend(_bytes_of(buffer) for block in blocks for buffer in block.alloc_buffers)
    tvm_ffi.structural_map(func.body, (tirx.AllocBuffer, of_statement))
    return bool(sizes) and None not in sizes


def _compact_buffers() -> Any:
    """TVM's pass that makes buffers as large as what is used of them, for kernels that gain by it.

    It would take away the lines between rows that keep them out of each other's sets of L1.  Where only the
    kernel's own sizes come at run time, it makes expressions of them out of extents that are
    constant, a thousand terms each, which become strides: such buffers are off the stack, and attention of
    open lengths took half a minute to compile.
    """
    compact = s_tir.transform.CompactBufferAllocation()

    @tvm.transform.module_pass(opt_level=0, name=str(compact.info.name))
    def compact_buffers(module: IRModule, _context: Any) -> IRModule:
        functions = dict(module.functions.items())
        kept = {
            variable: func
            for variable, func in functions.items()
            if isinstance(func, tirx.PrimFunc) and _states_its_buffers(func)
        }
        if not kept:
            return compact(module)
        others = {variable: func for variable, func in functions.items() if variable not in kept}
        result = compact(tvm.IRModule(others, attrs=module.attrs))
        for variable, func in kept.items():
            result.update_func(variable, func)
        return result

    return compact_buffers


def _to_loops() -> list[Any]:
    """TVM's passes up to the one that lowers blocks to loops."""
    s = s_tir.transform
    return [
        *(s.CanonicalizeLoop(), s.LowerCrossThreadReduction(), s.LowerInitBlock()),
        *(s.PlanAndUpdateBufferAllocationLocation(), s.ConvertBlocksToOpaque(), s.LiftThreadBinding()),
        *(s.ManifestSharedMemoryLocalStage(), _compact_buffers(), s.LowerAutoCopy()),
        *(s.UnifyThreadBinding(), s.LowerMatchBuffer(), s.StmtSimplify(), s.InjectPermutedLayout()),
        *(s.AnnotateIrregularLoop(), s.InjectSoftwarePipeline(), s.TransformMmaBufferLayout()),
        s.LowerOpaqueBlock(),
    ]


_IDLE = ("s_tir.InjectVirtualThread", "s_tir.ThreadSync", "tirx.RemoveNoOp")
"""Passes that change nothing of a CPU's machine code: kernels here have no virtual threads and no shared
memory, and LLVM removes what does nothing, in a tenth of the time."""


def _pipeline_factory() -> tuple[Any, Any, Any]:
    """Lowering, and the passes that follow it on the host and on a device, as TVM's registry wants them."""
    lower, finalize_host, finalize_device = s_tir_pipeline.default_s_tir_pipeline()

    def finalize() -> Any:
        own = [keep_small_buffers_on_stack, keep_nan, divide_counts, take_bits_of_zero]
        return tvm.ir.transform.Sequential([*own, finalize_host()])

    # Indices are whole once blocks are lowered, and buffers are not flattened yet.
    to_loops = _to_loops()
    plain = tvm.ir.transform.Sequential([*to_loops, give_each_lane_its_steps, divide_what_rises])
    # A second time they would write the extents of buffers anew, from regions that nobody can simplify any
    # more: attention of open lengths took eight times as long to compile.
    done = [str(one.info.name) for one in to_loops]

    @tvm.transform.module_pass(opt_level=0, name="hetero_tvm.Lower")
    def lower_without_cse(module: IRModule, context: Any) -> IRModule:
        # LLVM finds common subexpressions as well, in a tenth of the time.  Kernels are called by the
        # virtual machine alone, with tensors of the shapes it planned: it has checked the model's inputs,
        # and the checks of each kernel's arguments take a fifth of the time to compile.
        config = {**dict(context.config), "tirx.disable_cse_tir": True}
        disabled = list(context.disabled_pass)
        with tvm.transform.PassContext(context.opt_level, config=config, disabled_pass=disabled):
            looped = plain(module)
        disabled += [*done, *_IDLE]
        with tvm.transform.PassContext(context.opt_level, config=config, disabled_pass=disabled):
            return take_what_malloc_gives(skip_argument_checks(lower(looped)))

    # A subexpression that occurs twice brings its variables twice, and neither the vectoriser nor LLVM takes
    # a variable that is bound in two places.
    rename = tirx.transform.ConvertSSA()
    semantics = [begin_at_infinity, wrap_around, divide_without_traps, keep_cancellation, use_vector_math]
    lowering = [leave_out_pragmas, *semantics, convert_once, rename, lower_without_cse]
    return tvm.ir.transform.Sequential(lowering), finalize, finalize_device


compilation_pipeline.register_tir_pipeline(PIPELINE, _pipeline_factory)


def compile_kernels(module: PrimFunc | IRModule, target: TVMTarget) -> Any:
    """Compile a PrimFunc, or an IRModule of them; ``jit()`` of the result gives callables."""
    if isinstance(module, tirx.PrimFunc):
        module = tvm.IRModule({"main": module.with_attr("global_symbol", "main")})
    return tvm.compile(module, target=target, tir_pipeline=PIPELINE)
