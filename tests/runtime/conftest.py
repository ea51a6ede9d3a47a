"""Small libraries, exported once per test session."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from hetero_tvm.host import native
from hetero_tvm.runtime import (
    Manifest,
    Signature,
    TargetInfo,
    TensorSpec,
    checksum,
    current_versions,
    embed_source,
    quiet_fd2,
    write_sidecar,
)

ROWS, WIDTH = 8, 64


def make_manifest(name="toy", inputs=(), outputs=(), *, isa=("sse2",), cpu="x86-64", **fields) -> Manifest:
    fields.setdefault("versions", current_versions())
    return Manifest(name, Signature(tuple(inputs), tuple(outputs)), TargetInfo("cpu", cpu, isa, 2), **fields)


def compile_manifest(folder: Path, manifest: Manifest, name="only.so") -> Path:
    """A library that holds a manifest and nothing to run (a tenth of a second)."""
    compile_source(folder, embed_source(manifest), name)
    checksum.seal(folder / name)
    return folder / name


def compile_source(folder: Path, text: str, name="only.so") -> Path:
    """A library of one C++ file."""
    source = folder / f"{name}.cc"
    source.write_text(text)
    command = [*native.find_compiler(), "-shared", "-fPIC", "-Wall", "-Werror", str(source)]
    subprocess.run([*command, "-o", str(folder / name)], check=True)
    return folder / name


def weights() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((WIDTH, WIDTH)).astype("float32")


def sample(seed: int = 1) -> np.ndarray:
    """An input of ``mlp``."""
    return np.random.default_rng(seed).standard_normal((ROWS, WIDTH)).astype("float32")


def expected(x: np.ndarray) -> np.ndarray:
    """What ``mlp`` computes."""
    return np.maximum(x @ weights(), 0)


def _parallel(module):
    """Every kernel with a loop that runs on several threads."""
    from hetero_tvm.host.tvm import PrimFunc, Schedule, relax

    module = relax.transform.LegalizeOps()(module)
    for variable, function in module.functions.items():
        if isinstance(function, PrimFunc):
            schedule = Schedule(function)
            for block in schedule.get_child_blocks(schedule.get_sblock("root")):
                schedule.parallel(schedule.get_loops(block)[0])
            module.update_func(variable, schedule.mod["main"].with_attrs(function.attrs))
    return module


def _export(folder: Path, name: str, make_body, inputs, outputs) -> Path:
    from hetero_tvm.codegen.thread_pool import export_library
    from hetero_tvm.host.tvm import relax, tvm

    builder = relax.BlockBuilder()
    variables = [relax.Var(spec.name, relax.TensorType(spec.shape, spec.dtype)) for spec in inputs]
    with builder.function("main", variables):
        with builder.dataflow():
            result = builder.emit_output(make_body(relax, builder, *variables))
        builder.emit_func_output(result)
    manifest = make_manifest(name, inputs, outputs)
    source = folder / f"{name}.cc"
    source.write_text(embed_source(manifest))
    path = folder / f"{name}.so"
    target = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64"} if sys.platform == "linux" else "llvm")
    with quiet_fd2():
        export_library(tvm.compile(_parallel(builder.get()), target), path, [str(source)])
    checksum.seal(path)
    write_sidecar(path, manifest)
    return path


@pytest.fixture(scope="session")
def mlp(tmp_path_factory) -> Path:
    """``relu(x @ weights())``; one input, one output, float32[8, 64]."""
    spec = TensorSpec("x", (ROWS, WIDTH), "float32")

    def body(relax, builder, x):
        return relax.op.nn.relu(builder.emit(relax.op.matmul(x, relax.const(weights()))))

    return _export(
        tmp_path_factory.mktemp("mlp"), "mlp", body, [spec], [TensorSpec("y", spec.shape, "float32")]
    )


@pytest.fixture(scope="session")
def many(tmp_path_factory) -> Path:
    """Two inputs; outputs: their sum, the first input itself, a constant, a bool, a bfloat16."""
    x = TensorSpec("x", (ROWS, WIDTH), "float32")
    ids = TensorSpec("token_ids", (ROWS, WIDTH), "int64")

    def body(relax, builder, a, b):
        total = builder.emit(relax.op.add(a, relax.op.astype(b, "float32")))
        positive = builder.emit(relax.op.greater(a, relax.const(0.0, "float32")))
        short = builder.emit(relax.op.astype(a, "bfloat16"))
        constant = relax.const(np.arange(3, dtype="float32"))
        return relax.Tuple([total, a, constant, positive, short])

    outputs = [
        TensorSpec("total", x.shape, "float32"),
        TensorSpec("same", x.shape, "float32"),
        TensorSpec("constant", (3,), "float32"),
        TensorSpec("positive", x.shape, "bool"),
        TensorSpec("short", x.shape, "bfloat16"),
    ]
    return _export(tmp_path_factory.mktemp("many"), "many", body, [x, ids], outputs)


@pytest.fixture(scope="session")
def wide(tmp_path_factory) -> Path:
    """``x + 1`` on float32[64, 256]: large enough that aligned inputs are lent, not copied."""
    spec = TensorSpec("x", (64, 256), "float32")

    def body(relax, builder, x):
        return relax.op.add(x, relax.const(1.0, "float32"))

    return _export(
        tmp_path_factory.mktemp("wide"), "wide", body, [spec], [TensorSpec("y", spec.shape, "float32")]
    )


@pytest.fixture
def run_python(tmp_path):
    """Run a script in a fresh process with this environment plus ``env``; returns its stdout."""

    def run(script: str, *args: object, check: bool = True, **env: str) -> str:
        ours = ("TVM_NUM", "TVM_BIND", "HETERO_TVM_T", "HETERO_TVM_P")
        keep = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
        root = str(Path(__file__).resolve().parents[2])
        result = subprocess.run(
            [sys.executable, "-c", script, *map(str, args)],
            env={**keep, "PYTHONPATH": root, **env},
            capture_output=True,
            text=True,
            timeout=1800,  # a deadlock ends some day
        )
        if check and result.returncode:
            raise AssertionError(result.stderr)
        return result.stdout if check else result.stdout + result.stderr

    return run


@pytest.fixture(scope="session")
def heavy(tmp_path_factory) -> Path:
    """``x @ ones`` on float32[1, 2048]: 16 MiB of constants."""
    x, y = (TensorSpec(name, (1, 2048), "float32") for name in "xy")

    def body(relax, builder, x):
        return relax.op.matmul(x, relax.const(np.ones((2048, 2048), "float32")))

    return _export(tmp_path_factory.mktemp("heavy"), "heavy", body, [x], [y])
