"""Faults in streams that the compiler made: damage, and flags that are missing or in the wrong place."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hetero_tvm.ops.attention import Attention
from hetero_tvm.ops.conv2d import Conv2d
from hetero_tvm.ops.matmul import Matmul
from hetero_tvm.ops.normalization import Normalization
from hetero_tvm.targets.npu.device.driver import DriverError, open_device
from hetero_tvm.targets.npu.isa.stream import Stream
from hetero_tvm.targets.npu.spaces import NPU_SPACES
from tests.schedules.npu.running import compile_kernel, machine, sample
from tests.targets.npu.isa.programs import at_load
from tests.targets.npu.regions.flag_mutants import Judge, mutants

ROOT = Path(__file__).parents[4]
MACHINE = machine("edge")
SAME = (1, 1, 1, 1)
OPS = [
    Matmul((40,), 48, 64, ("bias", "gelu_erf")),
    Attention(1, 2, 20, 20, 16, 0.25, 2, packed=True, mask=(1, 1, 1, 20)),
    Conv2d(1, 16, 9, 9, 24, (3, 3), (1, 1), SAME, epilogue=("bias", "relu")),
    Conv2d(1, 24, 6, 6, 24, (3, 3), (1, 1), SAME, groups=24, epilogue=("bias", "relu6")),
    Normalization((20,), 48, 1e-5),
]
MUTANTS = 40
"""Mutants of each kernel: 200 in all."""


def compiled(op):
    space = next(space for space in NPU_SPACES if space.refuses(op, MACHINE) is None)
    return compile_kernel(space, op, MACHINE, sample(op)).stream


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.label)
def test_flags_removed_or_moved(op):
    """The simulator says what an independent judge of all pairs of accesses says."""
    stream = Stream.from_bytes(compiled(op))
    made = mutants(stream, np.random.default_rng(len(op.label)), MUTANTS)
    judge = Judge(stream)
    with open_device(MACHINE.spec) as device:
        verdicts = [at_load(device, mutant.to_bytes()) for mutant in made]
    assert verdicts == [judge.verdict(mutant) for mutant in made]
    assert verdicts.count("data race") >= MUTANTS // 4 and "deadlock" in verdicts


@pytest.mark.parametrize("op", OPS[:3], ids=lambda op: op.label)
def test_any_byte_flipped_is_rejected_at_load(op):
    data = compiled(op)
    places = np.random.default_rng(0).choice(len(data), 500, replace=False)
    with open_device(MACHINE.spec) as device:
        for at in map(int, places):
            damaged = bytearray(data)
            damaged[at] ^= 1 << at % 8
            with pytest.raises(DriverError) as error:
                device.load(bytes(damaged))
            assert error.value.status == "malformed stream"


def test_damage_with_a_good_checksum_neither_crashes_nor_hangs(tmp_path):
    files = []
    for n, op in enumerate(OPS):
        files.append(tmp_path / f"{n}.bin")
        files[-1].write_bytes(compiled(op))
    command = [sys.executable, "-m", "tests.targets.npu.isa.stream_mutants", "1000", "edge", *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    outcomes = json.loads(done.stdout)
    assert sum(outcomes.values()) == 1000
    assert not {"driver failure", "unknown status"} & set(outcomes)
    assert outcomes.get("ok", 0) < 700 and len(outcomes) >= 6, outcomes
