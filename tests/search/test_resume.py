"""A search that goes on from records, for every CPU space: it learns from all, and proposes none of them.

Records pass through JSON, where tuples become lists; times are made up, so that nothing is measured.
"""

import re
import zlib

import pytest

from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.ops.add_norm import AddNorm
from hetero_tvm.ops.attention import Attention
from hetero_tvm.ops.batch_matmul import BatchMatmul
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.elementwise import Elementwise
from hetero_tvm.ops.embedding_norm import EmbeddingNorm, Lookup
from hetero_tvm.ops.expand_depthwise import ExpandDepthwise
from hetero_tvm.ops.gated_matmul import GatedMatmul
from hetero_tvm.ops.group_norm import GroupNorm
from hetero_tvm.ops.images.norms import BlockedGroupNorm, BlockedNormalization
from hetero_tvm.ops.integers.batch_matmul import QuantBatchMatmul
from hetero_tvm.ops.integers.byte_table import ByteTable
from hetero_tvm.ops.integers.dynamic_matmul import DynamicGatedMatmul, DynamicMatmul
from hetero_tvm.ops.integers.quantized import QuantConv2d, QuantMatmul
from hetero_tvm.ops.integers.softmax import QuantSoftmax
from hetero_tvm.ops.integers.stored_matmul import StoredMatmul
from hetero_tvm.ops.interleave import Interleave
from hetero_tvm.ops.loops.forest import Forest
from hetero_tvm.ops.loops.recurrence import Recurrence
from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.ops.normalization import Normalization
from hetero_tvm.ops.pool2d import Pool2d, Relayout
from hetero_tvm.ops.rope import Rope
from hetero_tvm.ops.softmax import Softmax
from hetero_tvm.records.candidates import candidate_key
from hetero_tvm.records.record import Record, Site, new_record
from hetero_tvm.records.store import RecordStore, shipped_logs
from hetero_tvm.schedules.task import Task
from hetero_tvm.search.cost_model import SpaceModel
from hetero_tvm.search.points import every_kernel
from hetero_tvm.search.proposer import PointProposer
from hetero_tvm.search.task_state import candidate_of
from hetero_tvm.targets.cpu.spaces import CPU_SPACES

MACHINE = CpuModel("b", lanes=8, registers=16, threads=2)
TARGET = MACHINE.codegen_target()
BLOCKS = {"x_layout": "NCHW8c+1,1,1,1", "y_layout": "NCHW8c", "residual_layout": "NCHW8c"}
SQUARE = {"padding": (1, 1, 1, 1)}

OPS = [
    Matmul((48,), 96, 64),
    GatedMatmul((24,), 64, 48, "silu"),
    BatchMatmul((4,), 32, 32, 16, (4, 32, 16), (0, 512, 16, 1), (4, 16, 32), (0, 512, 32, 1), (0, 1, 2)),
    Attention(2, 4, 32, 32, 16, 0.25, 4),
    Normalization((48,), 64, 1e-5),
    Normalization((2,), 32, 1e-5, trail=(24,)),
    AddNorm((32,), 64, (64,), 1e-5),
    EmbeddingNorm((2, 7), 40, (Lookup(30, (2, 7)),), (), 1e-5),
    GroupNorm((2, 16, 8, 8), 4, 1e-5),
    BlockedGroupNorm(1, 16, 8, 8, "NCHW8c", "NCHW8c", 4, 1e-5),
    BlockedNormalization(1, 16, 8, 8, "NCHW8c", "NCHW8c", 1e-5),
    Softmax((48,), 64),
    Softmax((2,), 21, trail=(40, 40)),
    Conv2d(1, 16, 14, 14, 32, (3, 3), **SQUARE, **BLOCKS),
    Conv2d(1, 16, 14, 14, 16, (3, 3), groups=16, **SQUARE, **BLOCKS),
    Conv2d(1, 16, 14, 14, 24, (3, 3), **SQUARE),
    ExpandDepthwise(*(1, 8, 14, 14, 24, (3, 3), (1, 1), (1, 1, 1, 1)), x_layout="NCHW8c", y_layout="NCHW8c"),
    Rope((2, 4, 16, 32), 32, False, (1, 1, 16, 32), (2, 4, 16, 32), (0, 2048, 512, 32)),
    Elementwise((64, 96), "silu"),
    ByteTable((64, 1024)),
    Pool2d(1, 16, 14, 14, (3, 3), (2, 2), (1, 1, 1, 1), (7, 7), "max", False, "NCHW8c+1,1,1,1", "NCHW8c"),
    Pool2d(1, 16, 14, 14, (3, 3), (2, 2), (1, 1, 1, 1), (7, 7), "max"),
    Relayout(1, 16, 14, 14, "NCHW", "NCHW8c"),
    DynamicMatmul((48,), 96, 64),
    DynamicGatedMatmul((24,), 64, 48),
    StoredMatmul((48,), 96, 64, (), "int8", 32),
    QuantMatmul(lead=(48,), n=96, k=64),
    QuantBatchMatmul(
        *((2,), 40, 48, 32, (2, 40, 32), (0, 1280, 32, 1), (2, 48, 32), (0, 1536, 1, 32)),
        *((0, 1, 2), "uint8", "int8", 9, 0, 0.01, "uint8", 3),
    ),
    QuantSoftmax((48,), 64, "uint8", 0.1, "uint8", 1 / 255, 0),
    QuantConv2d("uint8", "uint8", 3, True, 2, 6, 5, 19, 7, (3, 3), (2, 1), (1, 1, 0, 2), (1, 1), -20),
    Interleave(1, 1, 3, 5, 33, (2, 2), (1, 1), (8, 64)),
    Recurrence("gru", 4, 3, 40),
    Forest(19, 5, 21, 90, 1, 6),
]
MOST = 80


def task_of(op):
    space = next(space for space in CPU_SPACES if space.refuses(op, MACHINE) is None)
    return Task(op.label, op.label, op, op.workload(), space, (("node",),), op.flops, op.nbytes)


def proposer(task):
    return PointProposer(task, MACHINE, TARGET, SpaceModel(0), 0, batch=8)


def seconds(candidate):
    return 1e-5 * (1 + zlib.crc32(candidate_key(candidate).encode()) % 1000 / 100)


def go_on(searching, found, most):
    """Proposals up to ``most`` in all, each learned; the keys of what is there and of what comes."""
    while len(found) < most and (proposed := searching.propose(8)):
        for candidate in proposed[: most - len(found)]:
            assert searching.learn(candidate, seconds(candidate))
            found.append(candidate)
    return [candidate_key(candidate) for candidate in found]


def test_every_space_is_here():
    """All of them, but for those of bfloat16, which this machine does not have."""
    names = {space.name for space in CPU_SPACES}
    assert {task_of(op).space.name for op in OPS} == names - {
        "cpu.bf16_matmul",
        "cpu.bf16_conv2d",
        "cpu.bf16_attention",
    }


BY_DEFAULT = (Matmul, Softmax, Interleave)


def swept(ops):
    """Parameters of a test that takes every space: a few by default."""
    marks = [() if isinstance(op, BY_DEFAULT) else pytest.mark.exhaustive for op in ops]
    return [pytest.param(op, id=op.label, marks=mark) for op, mark in zip(ops, marks, strict=True)]


@pytest.mark.parametrize("op", swept(OPS))
def test_a_resumed_search_repeats_nothing(tmp_path, op):
    task = task_of(op)
    kernels = every_kernel(task.space, op, MACHINE)
    count = MOST if kernels is None else min(MOST, sum(1 for _ in kernels))
    first = proposer(task)
    default = first.default()
    assert first.learn(default, seconds(default))
    go_on(first, candidates := [default], count // 2)
    store = RecordStore(Site.of(MACHINE), tmp_path)
    for candidate in candidates:
        store.append(new_record(task, store.site, candidate, seconds=seconds(candidate)))
    known = RecordStore(Site.of(MACHINE), tmp_path).measured(task)
    assert len(known) == len(candidates)
    second = proposer(task)
    assert all(second.learn(candidate_of(record), record.seconds) for record in known.values())
    canonical = [
        candidate_key({"point": task.space.canonical(op, candidate_of(record)["point"], MACHINE)})
        for record in known.values()
    ]
    keys = canonical + go_on(second, [], count - len(candidates))
    assert len(keys) == len(set(keys)) == count


SHIPPED = {
    r"matmul_(\d+)x(\d+)x(\d+)_": lambda m, k, n: Matmul((m,), n, k),
    r"layer_norm_(\d+)x(\d+)": lambda m, n: Normalization((m,), n, 1e-5),
    r"attention_b(\d+)h(\d+)q(\d+)k(\d+)d(\d+)_": lambda b, h, q, k, d: Attention(
        b, h, q, k, d, 0.125, h, packed=True
    ),
}


@pytest.mark.thorough
def test_shipped_records_teach():
    """The search learns from what came with the package, on the machine that it is from."""
    machine = CpuModel("znver4", lanes=16, registers=32, threads=2, l2=1 << 20)
    lines = (shipped_logs() / "cpu-znver4.jsonl").read_text().splitlines()
    assert lines
    for record in map(Record.from_json, lines):
        sizes, make = next(
            (found.groups(), make) for text, make in SHIPPED.items() if (found := re.match(text, record.task))
        )
        op = make(*map(int, sizes))
        space = next(space for space in CPU_SPACES if space.name == record.space)
        task = Task(op.label, op.label, op, op.workload(), space, (("node",),), op.flops, op.nbytes)
        searching = PointProposer(task, machine, machine.codegen_target(), SpaceModel(0), 0, batch=8)
        assert record.version == space.version
        assert searching.learn(candidate_of(record), record.seconds), record.task
        assert candidate_key(candidate_of(record)) not in {candidate_key(c) for c in searching.propose(8)}
