"""8-bit models beside ONNX Runtime's and OpenVINO's, and their bars.

    python benchmarks/low_precision.py [resnet50 mobilenetv2 ...] [--threads 1] [--rounds 10] [--keep DIR]

Every runtime gets what its own tools make of the model: ours `hetero_tvm.quantize`, ONNX Runtime its dynamic
quantiser (for Transformers; weights with and without sign) and its static one (QDQ), OpenVINO that QDQ file
and NNCF's, where that is installed.  Weights and inputs are drawn, so accuracy is not judged here.  One
process per runtime, asked in turn; the figure is the median of all calls.  Bars are ours by the best 8-bit
peer; those of machines with dot products of bytes (VNNI) are lower.  Our float32 stands beside.  With
``--keep``, what was built is taken from a folder, and left there.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import tempfile
from pathlib import Path

import numpy as np

from hetero_tvm.benchmarking.compare import Entry, Options, Result, compare_entries
from hetero_tvm.benchmarking.runtimes import OURS

BARS = {
    "minilm-l6": (0.80, 0.85),
    "bert-base": (0.80, 0.85),
    "vit-b16": (0.80, 0.85),
    "mobilenetv2": (0.90, 0.85),
    "resnet50": (1.00, 0.85),
}
"""Model -> most that our time may be by the best peer's: with AVX2, with VNNI."""

FLOAT = f"{OURS} f32"
_IMAGES = ("mobilenetv2", "resnet50")
_DRAWN = 4
_LEAST_COSINE = 0.5  # of drawn weights, which say nothing


def prepare(name: str, folder: Path) -> list[Entry]:
    """Entries of one model, ours first; what the folder does not hold is built into it."""
    import onnx

    import hetero_tvm
    from hetero_tvm import zoo
    from hetero_tvm.reference import sample_inputs

    model = folder / "model.onnx"
    if not model.exists():
        onnx.save(zoo.build(name), model)
    plain = hetero_tvm.import_model(model)
    drawn = [sample_inputs(plain, seed) for seed in range(_DRAWN)]
    np.savez(folder / "inputs.npz", **drawn[0])
    method = "static" if name in _IMAGES else "dynamic"
    if not (folder / "int8.so").exists():
        from hetero_tvm.compile.quantize import quantize_model

        data = {key: np.stack([sample[key] for sample in drawn]) for key in drawn[0]}
        built, _ = quantize_model(
            plain, hetero_tvm.build_model, method=method, data=data, least_cosine=_LEAST_COSINE
        )
        built.export(folder / "int8.so")
    if not (folder / "f32.so").exists():
        hetero_tvm.build_model(hetero_tvm.optimize_model(plain, "cpu")).export(folder / "f32.so")
    entries = [_ours(OURS, folder / "int8.so"), _ours(FLOAT, folder / "f32.so")]
    peers = _of_onnxruntime(model, folder, drawn, dynamic=method == "dynamic")
    entries += [Entry(f"onnxruntime {path.stem}", "onnxruntime", _file(path)) for path in peers]
    entries.append(Entry("openvino qdq", "openvino", _file(folder / "qdq.onnx")))
    if importlib.util.find_spec("nncf") is not None:
        path = _of_nncf(model, folder, drawn, transformer=method == "dynamic")
        entries.append(Entry("openvino nncf", "openvino", _file(path)))
    return entries


def _ours(name: str, library: Path) -> Entry:
    return Entry(name, OURS, {"library": library, "model": None, "clean_model": None})


def _file(path: Path) -> dict[str, Path | None]:
    return {"library": None, "model": path, "clean_model": None}


def _of_onnxruntime(
    model: Path, folder: Path, drawn: list[dict[str, np.ndarray]], dynamic: bool
) -> list[Path]:
    """Files that ONNX Runtime's quantisers write."""
    from onnxruntime.quantization import QuantFormat, QuantType, quantize_dynamic, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    ready, qdq = folder / "ready.onnx", folder / "qdq.onnx"
    if not ready.exists():
        quant_pre_process(str(model), str(ready), skip_symbolic_shape=True)
    if not qdq.exists():
        quantize_static(
            str(ready),
            str(qdq),
            _Reader(drawn),
            quant_format=QuantFormat.QDQ,
            per_channel=True,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            extra_options={"MatMulConstBOnly": True},
        )
    made = [qdq]
    for kind in (QuantType.QInt8, QuantType.QUInt8) if dynamic else ():
        made.append(folder / f"dynamic-{kind.name}.onnx")
        if not made[-1].exists():
            signed = kind == QuantType.QInt8
            quantize_dynamic(str(ready), str(made[-1]), weight_type=kind, per_channel=signed)
    return made


class _Reader:
    """Samples as ONNX Runtime's calibrators read them."""

    def __init__(self, samples: list[dict[str, np.ndarray]]):
        self._left = iter(samples)

    def get_next(self) -> dict[str, np.ndarray] | None:
        return next(self._left, None)


def _of_nncf(model: Path, folder: Path, drawn: list[dict[str, np.ndarray]], transformer: bool) -> Path:
    """The file that NNCF's quantiser writes."""
    import nncf
    import openvino

    path = folder / "nncf.xml"
    if not path.exists():
        more = {"model_type": nncf.ModelType.TRANSFORMER} if transformer else {}
        read = openvino.Core().read_model(model)
        made = nncf.quantize(read, nncf.Dataset(drawn), subset_size=len(drawn), **more)
        openvino.save_model(made, path, compress_to_fp16=False)
    return path


def measure(name: str, threads: int, rounds: int, folder: Path) -> list[Result]:
    """Times of one model by entry, ours first."""
    entries = prepare(name, folder)
    with np.load(folder / "inputs.npz") as file:
        inputs = {key: file[key] for key in file.files}
    cores = tuple(sorted(os.sched_getaffinity(0)))[:threads]
    return compare_entries(entries, inputs, Options(cores, rounds, 0.4, 0.2))


def ratio_to_best(results: list[Result]) -> float:
    """Our median by that of the fastest 8-bit peer."""
    ours, *others = results
    peers = [r for r in others if r.name != FLOAT and r.status == "ok"]
    return float(np.median(ours.compared) / min(np.median(peer.compared) for peer in peers))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", default=list(BARS), help=f"of {', '.join(BARS)}")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="folder of what is built")
    arguments = parser.parse_args()

    from hetero_tvm.schedules.cpu.dots import dot_for
    from hetero_tvm.targets.registry import parse_target

    vnni = dot_for(parse_target("cpu").machine).name == "dot4"
    for name in arguments.models:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary) if arguments.keep is None else arguments.keep / name
            folder.mkdir(parents=True, exist_ok=True)
            results = measure(name, arguments.threads, arguments.rounds, folder)
        for result in results:
            known = result.status == "ok"
            time = f"{np.median(result.compared):.2f} ms" if known else result.reason
            print(f"  {result.name}: {time}", flush=True)
        ratio, bar = ratio_to_best(results), BARS[name][vnni]
        print(f"{name}: {ratio:.2f} of the best, bar {bar:.2f}: {'held' if ratio <= bar else 'MISSED'}")


if __name__ == "__main__":
    main()
