"""Whole models on the GPU: an exported library of ours, and PyTorch's version of the same graph.

Requests name files: ``library`` (ours), ``model`` (ONNX, as our import cleans it) and ``inputs`` (.npz).
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import onnx
import torch

from benchmarks.gpu import tensors, timing
from benchmarks.gpu.device_info import Sensor

_SECONDS = 1.5
"""Seconds of samples; models are slower than kernels and their times scatter more."""


def run(request: dict[str, Any], sensor: Sensor) -> dict[str, Any]:
    """Answer a request.

    Its ``what`` is ``ours`` (times and errors of ``library``), ``features`` (every way to call it), or the
    mode of ``torch.compile`` to time, ``eager`` for none.
    """
    what = request["what"]
    # On PyTorch's default stream, where users call models.
    clock = None if tensors.EMULATED else timing.Clock(torch.cuda.default_stream())
    if what == "ours":
        return _ours(request, clock, sensor)
    if what == "features":
        return _features(request)
    return _theirs(request, clock, sensor)


def _inputs(request: dict[str, Any]) -> dict[str, np.ndarray]:
    with np.load(request["inputs"]) as file:
        return {name: file[name] for name in file.files}


def _placed(inputs: dict[str, np.ndarray], names: Iterable[str]) -> list[torch.Tensor]:
    """Inputs of those names, on the GPU."""
    return [torch.from_numpy(inputs[name]).to(tensors.DEVICE) for name in names]


def _module(request: dict[str, Any], half: bool = False) -> torch.nn.Module:
    from hetero_tvm.benchmarking.onnx_torch import to_torch

    return to_torch(onnx.load(request["model"]), half).to(tensors.DEVICE).eval()


def _truth(request: dict[str, Any], inputs: dict[str, np.ndarray]) -> list[torch.Tensor]:
    """Outputs in float32, with nothing rounded on the way."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
    module = _module(request)
    with torch.inference_mode():
        return list(tensors.as_tuple(module(*_placed(inputs, module.input_names))))


def _errors(found: Any, truth: list[torch.Tensor]) -> float:
    pairs = zip(tensors.as_tuple(found), truth, strict=True)
    return max(tensors.largest_error(_on_device(a), b) for a, b in pairs)


def _on_device(value: Any) -> torch.Tensor:
    return (value if isinstance(value, torch.Tensor) else torch.from_numpy(np.asarray(value))).to(
        tensors.DEVICE
    )


def _ours(request: dict[str, Any], clock: timing.Clock | None, sensor: Sensor) -> dict[str, Any]:
    from hetero_tvm.runtime import load

    inputs, net = _inputs(request), load(request["library"])
    places = _placed(inputs, [spec.name for spec in net.signature.inputs])
    call: Callable[[], Any] = functools.partial(net, **inputs)
    if clock is not None:
        call = functools.partial(net.on_device, *places)
    outputs = call()
    if clock is not None:
        torch.cuda.synchronize()
    found: dict[str, Any] = {"status": "ok", "error": _errors(outputs, _truth(request, inputs))}
    if not found["error"] <= request["tolerance"]:
        return {**found, "status": "wrong"}
    if clock is not None:
        # Called as a user calls it: the library has CUDA graphs of its own.
        times = timing.measure([call], clock, _SECONDS, graph=False, busy=lambda: found.update(sensor.read()))
        found |= {**times.to_dict(), "cuda_graph": net.cuda_graph}
    return found


def _theirs(request: dict[str, Any], clock: timing.Clock | None, sensor: Sensor) -> dict[str, Any]:
    arrays = _inputs(request)
    truth = _truth(request, arrays)
    module = _module(request, half=True)
    places = _placed(arrays, module.input_names)
    inputs = [x.half() if x.dtype == torch.float32 else x for x in places]
    compiled = module if request["what"] == "eager" else torch.compile(module, mode=request["what"])
    began = time.monotonic()
    with torch.inference_mode():
        found: dict[str, Any] = {"status": "ok", "error": _errors(compiled(*inputs), truth)}
        found["compile_seconds"] = time.monotonic() - began
        if clock is not None:
            call = functools.partial(compiled, *inputs)
            times = timing.measure(
                [call], clock, _SECONDS, graph=False, busy=lambda: found.update(sensor.read())
            )
            found |= times.to_dict()
    return found


def _features(request: dict[str, Any]) -> dict[str, Any]:
    """Compare ways to call a library, bit by bit: NumPy, PyTorch, submitted twice, without graphs."""
    from hetero_tvm.runtime import load

    inputs, net = _inputs(request), load(request["library"])
    places = _placed(inputs, [spec.name for spec in net.signature.inputs])
    first = tensors.as_tuple(net(**inputs))
    error = _errors(first, _truth(request, inputs))
    a, b = net.submit(**inputs), net.submit(**inputs)
    results = {"again": net(**inputs), "submitted": a.wait(), "submitted behind": b.wait()}
    results["without graphs"] = load(request["library"], cuda_graph=False)(**inputs)
    if not tensors.EMULATED:
        stream = torch.cuda.Stream()
        results["tensors"] = net.on_device(*places)
        torch.cuda.synchronize()
        stream.wait_stream(torch.cuda.current_stream())
        results["a stream of the user's"] = net.on_device(*places, stream=stream.cuda_stream)
        stream.synchronize()
    expected = [_on_device(value) for value in first]
    different = [name for name, found in results.items() if _errors(found, expected) > 0]
    status = "ok" if error <= request["tolerance"] and not different else "wrong"
    found = {"status": status, "error": error, "cuda_graph": str(net.cuda_graph)}
    return {**found, "why": f"differs: {', '.join(different)}"} if different else found
