"""The page of a build and of a search: every part is there; what objects say of themselves is short."""

import dataclasses
import json

import pytest
from onnx import TensorProto, helper

from hetero_tvm import api
from hetero_tvm.compile.report_page import report_html, write_report
from hetero_tvm.compile.truth import EndToEnd
from hetero_tvm.errors import BuildError
from hetero_tvm.frontend.signature import Span
from hetero_tvm.host.terminal import milliseconds
from hetero_tvm.search.outcome import TaskReport, TuneReport
from tests.pages.test_page import parsed

pytest.importorskip("tvm")


@pytest.fixture(scope="module")
def built():
    optimized = api.optimize_model(api.import_model("zoo:minilm-l6-tiny"), "cpu")
    return api.build_model(optimized, use_shipped=False)


@pytest.fixture(scope="module")
def search(built):
    tasks = [
        TaskReport(t.name, t.count, t.flops, t.nbytes, 2e-5, 1e-5, "record 2026-11-21", 5e-6)
        for t in built.optimized.tasks
    ]
    curve = [(0.5, 1, 3e-4), (2.0, 9, 2e-4)]
    return TuneReport(
        tasks, 9, elapsed=2.5, curve=curve, peak_gflops=100.0, bandwidth_gbs=20.0, cache_gbs=80.0, drift=0.01
    )


def test_the_page_of_a_tune(built, search):
    race = EndToEnd(2e-3, 1e-3, 0.5, 0.48, 0.51, 40, "tuned")
    tree = parsed(markup := report_html(built, search, race, "python -m hetero_tvm.tune 'a<b'"))
    for part in ("Roofline", "Kernels", "Search", "Fusions", "Memory of one call", "Numbers", "Machine"):
        assert f"<h2>{part}</h2>" in markup
    assert [tag for tag, _ in tree.seen].count("svg") == 3
    assert "80 GB/s, caches" in markup and "measured bandwidth of caches" in markup
    assert "2.00 x" in markup and "&#x27;a&lt;b&#x27;" in markup and "drift" in markup
    data = json.loads(tree.data)
    assert data["search"]["trials"] == 9 and len(data["kernels"]) == len(built.kernels)
    assert data["fusions"]["fusions"]["attention"] == 2


def test_the_page_of_a_build(built, tmp_path):
    markup = built.to_html()
    parsed(markup)
    assert "<h2>Roofline</h2>" not in markup and "from the records there are" in markup
    assert write_report(tmp_path / "model.so", markup) == tmp_path / "report.html"
    assert write_report(tmp_path / "b.so", markup) == tmp_path / "b.report.html"
    with pytest.raises(BuildError, match="cannot write"):
        write_report(tmp_path / "none" / "model.so", markup)


def test_work_of_open_sizes_is_counted_at_the_sizes_that_are_named():
    """A batch of 4 at most is imported at 5."""
    a, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", "m"]) for n in "ay")
    graph = helper.make_graph([helper.make_node("Softplus", ["a"], ["y"])], "open", [a], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    optimized = api.optimize_model(api.import_model(model, shapes={"a": (Span(1, 4), Span(3, 9))}), "cpu")
    assert optimized.model.open.counted_at == "n=5, m=9"
    built = api.build_model(optimized, use_shipped=False)
    assert "work at n=5, m=9" in report_html(built)
    assert str(built.check()).startswith("output 0 (y): max error ")


def test_the_time_of_all_kernels_has_those_that_were_not_compared_with_their_defaults(built, search):
    tasks = [dataclasses.replace(task, compared=place > 0) for place, task in enumerate(search.tasks)]
    markup = report_html(built, dataclasses.replace(search, tasks=tasks))
    total = milliseconds(1e3 * 1e-5 * sum(task.calls for task in tasks))
    assert f"all kernels<b>{total} ms</b>" in markup


def test_a_search_has_a_page_of_its_own(search):
    parsed(search.to_html())
    parsed(search._repr_html_())


def test_objects_are_short_in_a_prompt(built, search):
    optimized = built.optimized
    tuned = api.TunedModel(optimized, built.choices, search)
    for thing in (optimized.model, optimized, tuned, built, optimized.report, built.memory, search):
        assert repr(thing).startswith("<") and len(repr(thing)) < 250, repr(thing)
    disturbed = dataclasses.replace(search, disturbed=3)
    assert repr(disturbed).startswith("<TuneReport: 9 trials (3 of them disturbed by other processes) in")
    single = dataclasses.replace(search, trials=1, tasks=search.tasks[:1])
    assert "TuneReport: 1 trial in" in repr(single) and repr(single).endswith(", 1 kernel>")
    assert "minilm-l6-tiny" in repr(tuned) and "<svg" in tuned._repr_html_()
