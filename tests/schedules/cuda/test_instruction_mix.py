"""What the inner loops are made of, as PTX shows it: a machine without a GPU sees when they get heavier."""

import re

from hetero_tvm.ops.attention import Attention
from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.ops.softmax import Softmax
from hetero_tvm.schedules.cuda.attention.tensor_cores import CudaAttentionSpace
from hetero_tvm.schedules.cuda.products.matmul import CudaMatmulSpace
from hetero_tvm.schedules.cuda.rows.softmax import CudaSoftmaxSpace
from hetero_tvm.targets.cuda import codegen
from hetero_tvm.targets.registry import parse_target

MATMUL = CudaMatmulSpace()
LARGE = Matmul((4096,), 4096, 4096, ("bias",), "float16")


def ptx_of(tools, space, op, point, arch):
    target = parse_target(f"cuda:{arch}")
    function = space.emit(op, point or space.default(op, target.machine), target.machine)
    with codegen.collect(rehearsal=True) as made:
        codegen.compile_kernels(target.stamp(function), target.tvm_target)
    return tools.ptx(made[0].source, arch)


def loop_with(ptx, instruction):
    """The innermost loop around an instruction, without its branch back."""
    lines = ptx.splitlines()
    labels = {line.rstrip(":"): i for i, line in enumerate(lines) if re.match(r"\$L\w+:", line)}
    for end, line in enumerate(lines):
        found = re.search(r"bra(?:\.uni)?\s+(\$L\w+);", line)
        start = labels.get(found.group(1), end) if found else end
        if start < end and any(instruction in text for text in lines[start:end]):
            return lines[start:end]
    raise AssertionError(f"no loop around {instruction}")


def count(lines, pattern):
    return sum(bool(re.search(pattern, line)) for line in lines)


def test_products(compiler):
    """64 x 64 results of a warp: 64 mma a step of 32, fed by 16 ldmatrix; one barrier, no branch."""
    point = {"tile": (128, 256, 32, 2, 4, 4), "splits": 1}
    loop = loop_with(ptx_of(compiler, MATMUL, LARGE, point, "sm_80"), "mma.sync")
    assert (count(loop, "mma.sync"), count(loop, "ldmatrix")) == (64, 16)
    assert (count(loop, r"cp\.async\.cg"), count(loop, "bar.sync")) == (6, 1)
    assert not count(loop, r"\bbra\b") and not count(loop, r"\b(div|rem|mul\.hi)\.")
    first = next(i for i, line in enumerate(loop) if "mma.sync" in line)
    last = next(i for i, line in enumerate(loop) if "bar.sync" in line)
    # Fragments wait in registers: the barrier stands between products, and copies before the second half.
    assert first < last and count(loop[last:], "mma.sync") == 32
    assert count(loop[:last], r"cp\.async\.cg") == 6


def test_warp_groups(compiler):
    """One group of products is left running, so that the next is in line when it ends."""
    point = {"tile": (128, 256, 64, 8, 1, 4, 4), "splits": 1}
    loop = loop_with(ptx_of(compiler, MATMUL, LARGE, point, "sm_90a"), "wgmma.mma_async")
    assert count(loop, "wgmma.mma_async") == 4 and count(loop, r"wgmma\.wait_group.* 1;") == 1
    assert count(loop, "bar.sync") == 1 and not count(loop, r"\bbra\b")


def test_attention(compiler):
    """A block of 64 keys, 16 rows and 64 values: one exponential a score, one barrier, and no more."""
    op = Attention(4, 16, 2048, 2048, 64, 0.125, 16, causal=True, dtype="float16")
    ptx = ptx_of(compiler, CudaAttentionSpace(), op, {"tile": (8, 64, 1)}, "sm_80")
    loop = loop_with(ptx, "mma.sync")
    assert (count(loop, "mma.sync"), count(loop, "ldmatrix"), count(loop, "bar.sync")) == (64, 32, 1)
    assert count(loop, r"ex2\.approx\.ftz") == 34  # 32 scores, 2 corrections
    assert count(loop, r"shfl\.") == 4


def test_softmax(compiler):
    """Each value is read once, its exponential taken once."""
    op = Softmax((4096,), 4096, "float16")
    ptx = ptx_of(compiler, CudaSoftmaxSpace(), op, {"block": (128, 1)}, "sm_80").splitlines()
    assert count(ptx, r"ld\.global.*\.v4") == 4 and count(ptx, r"ex2\.approx") == 32
