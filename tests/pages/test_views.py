"""Views in notebooks: short, escaped, without anything from outside."""

import re

from hetero_tvm.pages import views
from hetero_tvm.runtime.signature import TensorSpec

ROW = {"kernel": "a<b", "calls": 2, "ms": 0.001234, "share": 0.25, "gflops": None, "roofline": None}


def test_ends_of_a_model():
    specs = [TensorSpec("x<y", ("batch", 3), "float32"), TensorSpec("scale", (), "int64")]
    markup = views.View("net", [("weights", "1 MB")], [views.ends(specs[:1], specs[1:])]).section
    assert "x&lt;y" in markup and "batch x 3" in markup and "one number" in markup and "<b>1 MB</b>" in markup
    assert "x<y" not in markup and not re.search(r"https?://|src=", markup)


def test_fusions_and_reasons():
    report = {
        "fusions": {"gelu": 2},
        "anchors": {"softmax": {"fused": 1, "all": 2}},
        "misses": [{"rule": "attention", "node": "/a", "reason": "a mask of rank 5"}],
    }
    markup = views.View("Fusions", (), views.fusion_parts(report)).section
    for words in ("gelu", "softmax: 1 of 2", "a mask of rank 5"):
        assert words in markup
    empty = {"fusions": {}, "anchors": {}, "misses": []}
    assert views.fusion_parts(empty) == []


def test_the_kernel_with_most_work_comes_first():
    markup = views.task_table([("small", 3, 1_000_000, "stock"), ("large", 1, 9_000_000, "cpu.matmul")])
    assert markup.index("large") < markup.index("small") and ">9<" in markup


def test_a_profile_shows_its_longest_kernels():
    rest = {**ROW, "kernel": "(virtual machine)"}
    document = {"model": "net", "call_ms": 1.5, "threads": 2, "kernels": [*[ROW] * 25, rest]}
    markup = views.profile_view(document).section
    assert markup.count("a&lt;b") == 20 and "and 5 shorter ones" in markup and "0.00123" in markup
    assert "(virtual machine)" in markup
    fast = {**ROW, "gflops": 12.34, "roofline": 1.3}
    assert "100%" in views.profile_view({**document, "kernels": [fast]}).section


class Thing(views.Shown):
    """An object with a view of its own."""

    def __repr__(self):
        return "<Thing>"

    def _view(self):
        return views.View("a thing", [("size", "1 MB")], ["words"])


def test_what_a_notebook_shows_is_a_page_too():
    page, markup = Thing().to_html(), Thing()._repr_html_()
    assert page.startswith("<!doctype html>") and "<title>a thing</title>" in page and "&lt;Thing&gt;" in page
    assert markup.startswith("<div") and "doctype" not in markup
    for words in ("<b>1 MB</b>", "<p>words</p>"):
        assert words in page and words in markup
