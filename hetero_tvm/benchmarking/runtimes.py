"""The runtimes that can be compared: how each is set up and called, inside a worker."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch

    from hetero_tvm.runtime import DeviceCost

Inputs = dict[str, np.ndarray]
Call = Callable[[], Sequence[np.ndarray]]
"""One inference on the inputs of a job; gives the outputs."""


@dataclass(frozen=True)
class Job:
    """Everything that a worker prepares a runtime from; all get the same inputs, cores and threads."""

    runtime: str
    inputs: Inputs
    cores: tuple[int, ...]
    library: Path | None
    """Library that we exported."""
    model: Path | None
    """ONNX file as it came, with fixed input shapes."""
    clean_model: Path | None
    """ONNX file after import: shape arithmetic folded, no symbolic shapes."""
    program: Path | None = None
    """Program that ``torch.export`` made, where the model is one."""

    @property
    def threads(self) -> int:
        return len(self.cores)


@dataclass(frozen=True)
class Prepared:
    """A runtime that has loaded its model.

    Parameters
    ----------
    call : one inference.
    device_cost : cost of the last call on a device that counts its own time; None where the wall time is
        the latency.
    """

    call: Call
    device_cost: Callable[[], DeviceCost | None] = lambda: None


@dataclass(frozen=True)
class Runtime:
    """One runtime.

    Parameters
    ----------
    prepare : makes it ready for a job.
    needs : package that it imports.
    install : argument of ``pip install`` that brings it.
    """

    prepare: Callable[[Job], Prepared]
    needs: str
    install: str

    @property
    def installed(self) -> bool:
        """Whether its package is there."""
        return importlib.util.find_spec(self.needs) is not None


def _ours(job: Job) -> Prepared:
    from hetero_tvm.runtime import load

    net = load(job.library, threads=job.threads, pin=job.cores)
    names = [spec.name for spec in net.signature.inputs]
    values = [job.inputs[name] for name in names]

    def call() -> Sequence[np.ndarray]:
        result = net(*values)
        return result if isinstance(result, tuple) else (result,)

    return Prepared(call, net.device_cost)


def _onnxruntime(job: Job) -> Prepared:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    options.intra_op_num_threads = job.threads
    options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(job.model), options, providers=["CPUExecutionProvider"])
    return Prepared(lambda: session.run(None, job.inputs))


def _openvino(job: Job, precision: str = "f32") -> Prepared:
    import openvino

    settings = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": precision,
        "INFERENCE_NUM_THREADS": job.threads,
    }
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(str(job.model)), "CPU", settings)
    request = compiled.create_infer_request()

    def call() -> Sequence[np.ndarray]:
        request.infer(job.inputs)
        return [tensor.data for tensor in request.output_tensors]

    return Prepared(call)


def _torch_module(job: Job) -> tuple[torch.nn.Module, list[Any], dict[str, Any]]:
    """Model in PyTorch, and its arguments: the user's own program, or the ONNX model translated."""
    import onnx
    import torch

    from hetero_tvm.benchmarking.onnx_torch import to_torch
    from hetero_tvm.frontend.torch.load import load_program

    torch.set_num_threads(job.threads)
    if job.program is not None:
        program = load_program(job.program, trust=True)  # written here, of what was read before
        flat = [
            torch.from_numpy(job.inputs[spec.arg.name])
            if spec.arg.name in job.inputs
            else spec.arg.value  # None, a flag or a number that the export fixed
            for spec in program.graph_signature.input_specs
            if spec.kind is torch.export.graph_signature.InputKind.USER_INPUT
        ]
        positional, named = torch.utils._pytree.tree_unflatten(flat, program.call_spec.in_spec)
        module = program.module()
        for tensor in (*module.parameters(), *module.buffers()):
            tensor.data = tensor.data.clone()  # in memory as PyTorch allocates it, not in a mapped file
        return module, positional, named
    module = to_torch(onnx.load(str(job.clean_model))).eval()
    return module, [torch.from_numpy(job.inputs[name]) for name in module.input_names], {}


def _arrays(results: object) -> list[np.ndarray]:
    """Tensors in what a module returned, in order."""
    import torch

    leaves = torch.utils._pytree.tree_leaves(results)
    return [leaf.numpy() for leaf in leaves if isinstance(leaf, torch.Tensor)]


def _torch(job: Job) -> Prepared:
    import torch

    module, values, named = _torch_module(job)

    def call() -> Sequence[np.ndarray]:
        with torch.inference_mode():
            return _arrays(module(*values, **named))

    return Prepared(call)


def import_setuptools() -> None:
    """Import setuptools, which Inductor needs, also where somebody has looked for pip.

    Before Python 3.12 setuptools puts its distutils in place of Python's, but not for pip: once a module of
    this name has been looked for, as huggingface_hub does, it ends with an AssertionError.
    """
    try:
        importlib.import_module("setuptools")
    except AssertionError:
        finder = importlib.import_module("_distutils_hack").DISTUTILS_FINDER
        vars(finder).pop("spec_for_distutils", None)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the distutils which it has just imported is replaced
            importlib.import_module("setuptools")


def _torch_compile(job: Job) -> Prepared:
    import torch
    import torch._inductor.config as inductor

    module, values, named = _torch_module(job)
    import_setuptools()
    compiled = torch.compile(module)

    def call() -> Sequence[np.ndarray]:
        with torch.no_grad():
            return _arrays(compiled(*values, **named))

    with inductor.patch(freezing=True):  # packs the weights, as the other runtimes do
        call()
    return Prepared(call)


def _tvm(job: Job) -> Prepared:
    """Stock TVM on our import: its default pipeline with fusion, no tuning."""
    from hetero_tvm import host
    from hetero_tvm.frontend import import_model
    from hetero_tvm.host.tvm import relax, tvm
    from hetero_tvm.runtime import quiet_fd2

    model = import_model(job.clean_model)
    target = tvm.target.Target(
        {"kind": "llvm", "mcpu": host.detect().microarchitecture, "num-cores": job.threads}
    )
    fuse = tvm.ir.transform.Sequential(
        [
            relax.transform.LegalizeOps(),
            relax.transform.AnnotateTIROpPattern(),
            relax.transform.FoldConstant(),
            relax.transform.FuseOps(),
            relax.transform.FuseTIR(),
        ]
    )
    with quiet_fd2(), target:
        executable = tvm.compile(fuse(model.module), target)
        machine = relax.VirtualMachine(executable, tvm.cpu())
    main = machine["main"]
    values = [tvm.runtime.tensor(job.inputs[spec.name]) for spec in model.signature.inputs]

    def call() -> Sequence[np.ndarray]:
        result = main(*values)
        return [result.numpy()] if hasattr(result, "numpy") else [part.numpy() for part in result]

    return Prepared(call)


OURS = "hetero_tvm"

RUNTIMES: dict[str, Runtime] = {
    OURS: Runtime(_ours, "tvm_ffi", "apache-tvm==0.27.0.post1"),
    "onnxruntime": Runtime(_onnxruntime, "onnxruntime", "onnxruntime"),
    "openvino": Runtime(_openvino, "openvino", "openvino"),
    "openvino-bf16": Runtime(functools.partial(_openvino, precision="bf16"), "openvino", "openvino"),
    "torch": Runtime(_torch, "torch", "torch==2.13.0"),
    "torch.compile": Runtime(_torch_compile, "torch", "torch==2.13.0"),
    "tvm": Runtime(_tvm, "tvm", "apache-tvm==0.27.0.post1"),
}

PEERS: dict[str, tuple[str, ...]] = {
    "onnxruntime": ("onnxruntime",),
    "openvino": ("openvino",),
    "openvino-bf16": ("openvino-bf16",),
    "torch": ("torch", "torch.compile"),
    "torch.compile": ("torch.compile",),
    "ort": ("onnxruntime",),
    "tvm": ("tvm",),
}
"""Names that ``--vs`` accepts, and the runtimes that each stands for."""

_DISTRIBUTIONS = {
    OURS: "hetero-tvm",
    "openvino-bf16": "openvino",
    "torch.compile": "torch",
    "tvm": "apache-tvm",
}


def version(name: str) -> str:
    """Installed version behind a runtime, or an empty string."""
    import importlib.metadata

    try:
        return importlib.metadata.version(_DISTRIBUTIONS.get(name, name))
    except importlib.metadata.PackageNotFoundError:
        import hetero_tvm

        return hetero_tvm.__version__ if name == OURS else ""
