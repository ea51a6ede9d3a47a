"""Every object of the API is a line in a terminal, and a view in a notebook."""

import numpy as np
import pytest

import hetero_tvm
from hetero_tvm.runtime import read_manifest


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
    others = [accuracy, task, task.space, optimized.target, read_manifest(path), net.bind(), built.memory]
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
        assert "<table>" in markup and "http" not in markup and len(markup) < 100_000, type(each)


def test_dir_shows_the_verbs_and_nothing_that_is_only_imported():
    assert {"tune_model", "load", "Span"} <= set(dir(hetero_tvm))
    assert not {"Any", "annotations", "VERSION"} & set(dir(hetero_tvm))
