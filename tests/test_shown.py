"""Every object of the API is a line in a terminal, and a view in a notebook."""

import numpy as np
import pytest

import hetero_tvm
from hetero_tvm import Span, import_model
from hetero_tvm.pages.views import longest, profile_view
from hetero_tvm.runtime import read_manifest
from hetero_tvm.search.outcome import TaskReport
from tests.frontend.onnx.helpers import text_model


@pytest.fixture(scope="module")
def objects(tmp_path_factory):
    model = hetero_tvm.import_model("zoo:minilm-l6-tiny")
    optimized = hetero_tvm.optimize_model(model)
    built = hetero_tvm.build_model(optimized)
    accuracy = built.check()
    path = built.export(tmp_path_factory.mktemp("shown"))
    net = hetero_tvm.load(path)
    profile = net.profile(*(np.ones(spec.shape, spec.dtype) for spec in net.signature.inputs))
    viewed = [model, optimized, optimized.report, built, net, profile]
    task = next(task for task in optimized.tasks if task.space is not None)
    opened = hetero_tvm.import_model("zoo:minilm-l6-tiny", shapes={"input_ids": (1, hetero_tvm.Span(8, 16))})
    viewed.append(opened)
    report = TaskReport("matmul_2x3x4", 1, 48, 104, 1.62182195e-05, None)
    others = [
        net.signature,
        report,
        accuracy,
        task,
        task.space,
        optimized.target,
        read_manifest(path),
        net.bind(),
        built.memory,
    ]
    return viewed, others


@pytest.mark.thorough
def test_reprs_are_one_short_line(objects):
    for each in [*objects[0], *objects[1]]:
        said = repr(each)
        assert said.startswith("<") and said.endswith(">") and len(said) < 300, said
        assert "\n" not in said and " at 0x" not in said


@pytest.mark.thorough
def test_notebooks_get_a_view_that_needs_nothing_else(objects):
    for each in objects[0]:
        markup = each._repr_html_()
        assert each.to_html().startswith("<!doctype html>")
        assert "<table>" in markup and "http" not in markup and len(markup) < 100_000, type(each)


def test_an_open_model_says_so():
    """It was shown as one of the largest sizes."""
    model = import_model(
        text_model("g (float[n, 3] x) => (float[n, 3] y) { y = Relu(x) }"), shapes={"x": (Span(2, 64), 3)}
    )
    assert "at n=64 of n = 2..64" in repr(model) and "n = 2..64" in model._repr_html_()
    assert "work at n=64" in hetero_tvm.optimize_model(model)._repr_html_()


def test_time_outside_of_kernels_is_always_shown():
    """It was the last row of many, and left out: the others were a tenth of a call."""
    row = {"calls": 1, "ms": 0.1, "share": 0.01, "gflops": None, "roofline": None}
    kernels = [{"kernel": f"k{n}", **row} for n in range(30)] + [{"kernel": "(virtual machine)", **row}]
    assert [one["kernel"] for one in longest(kernels, 2)] == ["k0", "k1", "(virtual machine)"]
    assert longest(kernels, 31) == kernels
    view = profile_view({"model": "m", "kernels": kernels, "call_ms": 1.0, "threads": 2}).section
    assert "(virtual machine)" in view and "and 10 shorter ones" in view


def test_dir_shows_the_verbs_and_nothing_that_is_only_imported():
    assert {"tune_model", "load", "Span"} <= set(dir(hetero_tvm))
    assert not {"Any", "annotations", "VERSION"} & set(dir(hetero_tvm))
