"""Quantised models: accuracy told, samples read, layers kept in float32 until the bar holds."""

import json

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from hetero_tvm import api, quantize
from hetero_tvm.compile.quantize import check_settings, quantize_model, samples_of
from hetero_tvm.errors import AccuracyError, InputError, UsageError
from hetero_tvm.ops.decoding.storage import Storage
from hetero_tvm.targets.registry import parse_target


@pytest.fixture(scope="module")
def model():
    return api.import_model("zoo:minilm-l6-tiny")


def build(optimized):
    return api.build_model(optimized, use_shipped=False)


def test_products_become_8_bit_and_the_accuracy_is_told(model):
    built, report = quantize_model(model, build)
    assert report.quantized == len(report.layers) and not report.kept
    assert 0.99 < report.least_cosine < 1.0
    assert all(0 < layer.error < 0.1 for layer in report.layers)
    assert [layer.error for layer in report.layers] == sorted(
        (layer.error for layer in report.layers), reverse=True
    )
    assert "products in 8 bits, 0 kept" in str(report)
    assert built.check().ok


@pytest.mark.thorough
def test_sensitive_products_stay_in_float32_until_the_bar_holds(model):
    _, free = quantize_model(model, build)
    bar = 1 - (1 - free.least_cosine) / 3
    _, report = quantize_model(model, build, least_cosine=bar)
    assert report.least_cosine >= bar
    assert 0 < len(report.kept) and report.quantized < free.quantized
    assert report.kept[0] == report.layers[0].nodes[-1]


@pytest.mark.exhaustive
def test_a_bar_that_no_model_meets(model):
    with pytest.raises(AccuracyError, match="stays below 2"):
        quantize_model(model, build, least_cosine=2.0)


def test_a_model_of_which_nothing_is_left_in_8_bits_is_no_success():
    """One product, too coarse in 8 bits: in float32 the bar would hold, of a model as it was."""
    rng = np.random.default_rng(0)
    w = numpy_helper.from_array(rng.standard_normal((256, 256)).astype("float32"), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="product")],
        "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 256])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [2, 256])],
        [w],
    )
    one = api.import_model(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    )
    with pytest.raises(AccuracyError, match="with any product in 8 bits") as caught:
        quantize_model(one, build, least_cosine=0.99999999)
    assert "1 products in 8 bits" in str(caught.value) and "static" in str(caught.value)


@pytest.mark.exhaustive
def test_smooth(model):
    """Products are smoothed where that helps on the samples."""
    drawn = samples_of(model, None)[:2]
    data = {name: np.stack([sample[name] for sample in drawn]) for name in drawn[0]}
    built, report = quantize_model(model, build, method="smooth", data=data)
    assert report.method == "smooth" and report.least_cosine > 0.99 and not report.kept
    smoothed = [task for task in built.optimized.tasks if "smooth_" in task.name]
    assert report.smoothed == sum(task.count for task in smoothed)
    assert built.check().ok


@pytest.mark.thorough
@pytest.mark.parametrize(
    "storage",
    [
        pytest.param(Storage.named("int4", 32, True), id="int4"),
        pytest.param(None, id="int8", marks=pytest.mark.exhaustive),
    ],
)
def test_weight_only(model, storage):
    built, report = quantize_model(model, build, method="weight-only", storage=storage, least_cosine=0.9)
    assert report.bits == (storage or Storage.named("int8")).bits
    assert report.quantized == len(report.layers) - len(report.kept) and not report.left
    assert report.least_cosine > (0.9 if storage else 0.999)
    before, after = report.weight_bytes
    assert after < before
    assert built.check().ok and f"in {report.bits} bits" in str(report)


def test_samples(model):
    (one,) = samples_of(model, {s.name: np.ones(s.shape, s.dtype) for s in model.signature.inputs})
    several = {s.name: np.ones((3, *s.shape), s.dtype) for s in model.signature.inputs}
    assert len(samples_of(model, several)) == 3 and set(one) == set(several)
    rows = {name: array.reshape(-1, *array.shape[2:]) for name, array in several.items()}  # batch after batch
    for sample, wanted in zip(samples_of(model, rows), samples_of(model, several), strict=True):
        assert all(np.array_equal(sample[name], wanted[name]) for name in several)
    name = model.signature.inputs[0].name
    with pytest.raises(InputError, match="differ"):
        samples_of(model, {**several, name: several[name][:2]})
    with pytest.raises(InputError, match="fit"):
        samples_of(model, {**several, name: several[name][..., :1]})


def test_what_is_asked_for_wrongly(model, tmp_path):
    with pytest.raises(UsageError, match="no method 'guess'"):
        quantize_model(model, build, method="guess")
    with pytest.raises(UsageError, match="no calibration 'min'") as caught:
        check_settings("dynamic", "min", "cpu", False, None)
    assert "did you mean 'minmax'?" in str(caught.value)
    for method in ("static", "smooth"):
        with pytest.raises(UsageError, match="on samples"):
            quantize_model(model, build, method=method)
    with pytest.raises(UsageError, match="no weights of 4 bits in groups"):
        quantize_model(model, build, storage=Storage.named("int4"))
    with pytest.raises(UsageError, match="no weights of few bits"):
        quantize_model(model, build, target="npu:edge", method="weight-only")
    parser = quantize.make_parser()
    with pytest.raises(UsageError, match="--bits, --zero-points: for --method weight-only"):
        quantize.storage_of(parser.parse_args(["m", "--bits", "4", "--zero-points"]))
    with pytest.raises(UsageError, match="groups of 48"):
        quantize.storage_of(parser.parse_args(["m", "--method", "weight-only", "--group", "48"]))
    with pytest.raises(UsageError, match="no file"):
        quantize.read_metric("judge")
    (tmp_path / "judge.py").write_text("def one(outputs):\n    return 1\n")
    with pytest.raises(UsageError, match="no function 'two'"):
        quantize.read_metric(f"{tmp_path}/judge.py:two")
    (tmp_path / "judge.py").write_text("def one(:\n")
    with pytest.raises(UsageError, match="judge.py:one: SyntaxError"):
        quantize.read_metric(f"{tmp_path}/judge.py:one")


def _no_labels(outputs):
    raise ValueError("no labels")


@pytest.mark.parametrize(
    "metric, words",
    [
        (_no_labels, r"fails \(test_quantize.py, line \d+\): ValueError: no labels"),
        (lambda outputs: "good", "gives 'good', not a number"),
        (lambda outputs: None, "gives None, not a number"),
        (lambda outputs: float("nan"), "gives nan"),
    ],
)
def test_a_metric_that_fails_is_told_as_such_before_anything_is_quantised(model, metric, words):
    built = []
    with pytest.raises(UsageError, match=words) as caught:
        quantize_model(model, lambda optimized: built.append(build(optimized)) or built[-1], metric=metric)
    assert len(built) == 1 and "float32[4, 1, 12, 48]" in caught.value.hint


def test_samples_that_are_no_numbers_are_refused():
    net = api.import_model("zoo:mobilenetv2-tiny")
    (spec,) = net.signature.inputs
    data = np.zeros(spec.shape, "float32")
    data[0, 0, 0, :2] = np.nan
    with pytest.raises(InputError, match="the samples hold NaN") as caught:
        samples_of(net, {spec.name: data})
    assert list(caught.value.problems) == [f"{spec.name}: 2 of {data.size} elements"]


@pytest.mark.thorough
def test_command(tmp_path, capsys):
    assert quantize.main(["zoo:vit-b16-tiny", "--out", str(tmp_path), "--no-shipped-records"]) == 0
    said = [line for line in capsys.readouterr().err.splitlines() if "..." not in line]
    for number, step in enumerate(("import", "quantize, compile and measure", "check and export"), 1):
        assert any(line.startswith(f"[{number}/3] {step}") for line in said)
    document = json.loads((tmp_path / "accuracy.json").read_text())
    assert "hetero_tvm.quantize zoo:vit-b16-tiny" in (tmp_path / "report.html").read_text()
    assert (tmp_path / "model.so").exists() and document["least_cosine"] > 0.99
    assert document["method"] == "dynamic" and document["quantized"] > 0


@pytest.mark.exhaustive
def test_static_command(tmp_path):
    """A residual network from end to end in 8 bits, judged by the user's function."""
    from onnx import save

    from hetero_tvm.zoo.convnet import ResNetConfig, build_resnet

    config = ResNetConfig(blocks=(1, 1), widths=(8, 16), stem=8, image=32, classes=10)
    save(build_resnet(config, "small", batch=1, seed=0), tmp_path / "small.onnx")
    images = np.random.default_rng(0).standard_normal((3, 1, 3, 32, 32)).astype("float32")
    np.savez(tmp_path / "data.npz", input=images)
    (tmp_path / "judge.py").write_text("def spread(outputs):\n    return outputs['logits'].std()\n")
    options = ["--method", "static", "--data", str(tmp_path / "data.npz"), "--out", str(tmp_path), "-q"]
    options += ["--calibration", "mse", "--metric", f"{tmp_path}/judge.py:spread", "--no-shipped-records"]
    assert quantize.main([str(tmp_path / "small.onnx"), *options]) == 0
    document = json.loads((tmp_path / "accuracy.json").read_text())
    assert document["method"] == "static" and document["samples"] == 3
    assert document["least_cosine"] > 0.99 and document["quantized"] == len(document["layers"]) == 10
    assert document["metric"][0] == pytest.approx(document["metric"][1], rel=0.1)


@pytest.mark.thorough
def test_kernels_name_the_arithmetic_whose_peak_bounds_them(model):
    built, _ = quantize_model(model, build)
    found = {row["kernel"].partition("_")[0]: row["arithmetic"] for row in built.kernels}
    assert found["dynamic"] == "int8" and found["layer"] == found["attention"] == "float32"
    target = parse_target("cpu:znver4").with_precision("bf16")
    halves = {
        task.space.name: task.arithmetic for task in api.optimize_model(model, target).tasks if task.space
    }
    assert halves["cpu.bf16_matmul"] == "bfloat16" and halves["cpu.normalize"] == "float32"
