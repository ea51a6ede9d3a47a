"""Arguments that belong to another verb, or to none."""

from pathlib import Path

import numpy as np
import pytest

import hetero_tvm
from hetero_tvm import api
from hetero_tvm.errors import InputError, UsageError
from tests.frontend.onnx.helpers import text_model


@pytest.fixture(scope="module")
def model():
    return api.import_model(text_model("g (float[2,3] x) => (float[2,3] y) { y = Relu(x) }"))


@pytest.fixture(scope="module")
def optimized(model):
    return api.optimize_model(model)


@pytest.fixture(scope="module")
def built(optimized, tmp_path_factory):
    return api.build_model(optimized, logs=tmp_path_factory.mktemp("logs"))


def test_each_verb_names_what_it_takes_and_the_verb_before(model, optimized, built):
    for wrong, verb, hint in (
        (lambda: api.build_model(model), "optimize_model or tune_model", "optimize_model(model"),
        (lambda: api.build_model("model.onnx"), "not str", "import_model(path)"),
        (lambda: api.build_model(Path("model.onnx")), "optimize_model or tune_model", "import_model(path)"),
        (lambda: api.build_model(built), "BuiltModel", "check, run and export"),
        (lambda: api.build_model(None), "not None", ""),
        (lambda: api.tune_model(model), "takes what optimize_model gives", "optimize_model(model"),
        (lambda: api.optimize_model("model.onnx"), "takes what import_model gives", "import_model"),
        (lambda: api.optimize_model(optimized), "takes what import_model gives", "it is optimized"),
        (lambda: hetero_tvm.load(built), "path of an exported library", "export it first"),
        (lambda: hetero_tvm.load(None), "path of an exported library", ""),
        (lambda: built.export(None), "path of a folder", ""),
    ):
        with pytest.raises(UsageError) as caught:
            wrong()
        assert verb in caught.value.message and hint in (caught.value.hint or "")


@pytest.mark.parametrize(
    "options",
    [
        {"trials": "x"},
        {"trials": -1},
        {"trials": True},
        {"minutes": 0},
        {"seed": 0.5},
        {"patience": float("nan")},
        {"on_event": 3},
        {"logs": 3},
    ],
)
def test_limits_of_a_search(optimized, options):
    with pytest.raises(UsageError, match=next(iter(options))):
        api.tune_model(optimized, **options)


@pytest.mark.parametrize("shapes", [[(2, 3)], {"x": "2x3"}, {"x": 3}, {"x": (2.5, 3)}, {3: (2, 3)}])
def test_shapes(shapes):
    with pytest.raises(UsageError, match="shapes"):
        api.import_model("zoo:minilm-l6-tiny", shapes=shapes)


@pytest.mark.parametrize("options", [{"target": None}, {"disable": 3}, {"precision": 8}, {"dump_ir": 3}])
def test_options_of_the_graph(model, options):
    with pytest.raises(UsageError, match=next(iter(options))):
        api.optimize_model(model, **options)


def test_inputs_of_a_run(built):
    for inputs in ({}, {"x": np.zeros((5, 5))}, {"z": np.zeros((2, 3), "float32")}):
        with pytest.raises(InputError, match="x"):
            built.run(inputs)
    with pytest.raises(InputError, match="arrays by name"):
        built.run([np.zeros((2, 3))])


def test_arguments_of_a_call_as_onnxruntime_has_it(built, tmp_path):
    net = hetero_tvm.load(built.export(tmp_path))
    for arguments, wrong in (((3, {}), "names"), (("y", {}), "names"), ((None, 3), "inputs")):
        with pytest.raises(InputError, match=f"^{wrong} .* not (int|str)$"):
            net.run(*arguments)


@pytest.mark.parametrize("arguments", [(3, "out"), ("checkpoint", 3)])
def test_folders_of_a_language_model(arguments):
    with pytest.raises(UsageError, match="not int"):
        api.build_language_model(*arguments)
