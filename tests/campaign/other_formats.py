"""Good files of formats beside ONNX and PyTorch for ``damaged_files``, and what reads each damaged one."""

from __future__ import annotations

import contextlib
import io
import json
import tempfile
import zipfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest import mock

from hetero_tvm.errors import BuildError, HeteroTVMError
from tests import tiny_llama
from tests.campaign import damage

_TFLITE = Path(__file__).parents[1] / "frontend" / "tflite" / "files"


def tflite_bases() -> dict[str, bytes]:
    """Files that TensorFlow Lite's converter wrote: loops, 8 bits, tables of words."""
    return {path.stem: path.read_bytes() for path in sorted(_TFLITE.glob("*.tflite"))}


def stablehlo_bases() -> dict[str, bytes]:
    """A function of JAX as text, as bytecode, and as an artifact for all versions.

    Another process makes them: XLA's threads and the forks of the campaign do not go together.
    """
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(_programs).result()


def _programs() -> dict[str, bytes]:
    import jax
    from jaxlib.mlir.dialects import stablehlo

    def function(x: Any, w: Any, ids: Any) -> Any:
        y = jax.nn.softmax(jax.nn.relu(x @ w), -1)
        return jax.numpy.take(y, ids, axis=0), y.sum(0)

    shapes = ((4, 8), "float32"), ((8, 6), "float32"), ((3,), "int32")
    arguments = [jax.ShapeDtypeStruct(*shape) for shape in shapes]
    module = jax.jit(function).lower(*arguments).compiler_ir("stablehlo")
    bytecode = io.BytesIO()
    module.operation.write_bytecode(bytecode)
    with module.context:
        artifact = stablehlo.serialize_portable_artifact(module, stablehlo.get_minimum_version())
    return {"text": str(module).encode(), "bytecode": bytecode.getvalue(), "artifact": bytes(artifact)}


def description_bases() -> dict[str, bytes]:
    """A kernel description."""
    from tests.frontend.kernels.helpers import layer_norm

    return {"layer_norm": json.dumps(layer_norm()).encode()}


def gguf_bases() -> dict[str, bytes]:
    """A tiny Llama as floats, and in 8 and 4 bits."""
    from tests.language.test_gguf import write_gguf

    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("F32", "Q8_0", "Q4_0"):
            path = write_gguf(Path(folder) / f"{kind}.gguf", tiny_llama.weights(), kind)
            found[kind] = path.read_bytes()
    return found


def checkpoint_bases() -> dict[str, bytes]:
    """A tiny Llama as transformers saves it, in an archive that stands for the folder."""
    with tempfile.TemporaryDirectory() as folder:
        tiny_llama.write(Path(folder))
        return {"llama": damage.archive_of({p.name: p.read_bytes() for p in Path(folder).iterdir()})}


def try_import(path: Path, build: bool) -> tuple[str, str]:
    """Import a model file; build it and run it where that is asked for."""
    from hetero_tvm import api
    from hetero_tvm.reference import sample_inputs

    model = api.import_model(path)
    if build:
        api.build_model(api.optimize_model(model), use_shipped=False).run(sample_inputs(model, 1))
    return "right", "built and run" if build else "imported"


class _Read(HeteroTVMError):
    """All that a checkpoint has was read."""


def try_checkpoint(path: Path, build: bool) -> tuple[str, str]:
    """Read a language model up to the step that would be compiled; compile it where that is asked for."""
    from hetero_tvm.language.build import build_language_model
    from hetero_tvm.targets.cpu.target import CpuTarget

    if path.suffix == ".zip":
        with zipfile.ZipFile(path) as archive:
            path = path.parent / "folder"
            archive.extractall(path)
    instead = mock.patch.object(CpuTarget, "compile", side_effect=_Read("all of it"))
    try:
        with contextlib.nullcontext() if build else instead:
            build_language_model(path, path.parent / "out")
    except _Read:
        return "right", "read"
    except BuildError as error:  # a step that cannot be lowered should have been refused before
        return "broken", str(error)
    return "right", "built"
