"""The page of benchmarks says what its files say."""

import xml.etree.ElementTree as ElementTree

import pytest

from benchmarks import tables
from benchmarks.plots import bars
from benchmarks.table_kinds import headline, suite_table


def test_the_page_and_its_plots_are_those_of_the_files(capsys):
    assert tables.main(["--check"]) == 0, capsys.readouterr().err


def test_a_mark_that_names_nothing_is_refused():
    with pytest.raises(ValueError, match="no table is called nets"):
        tables.made("<!-- table nets zen4-bert.json -->\n<!-- end -->")
    with pytest.raises(ValueError, match="there is no .*nowhere.json"):
        tables.made("<!-- table models nowhere.json -->\n<!-- end -->")


def test_what_stood_between_the_marks_goes_and_the_rest_stays():
    page = "before\n<!-- table products zen4-matmul.json -->\nold\n<!-- end -->\nafter"
    made, plots = tables.made(page)
    assert (
        made.startswith("before\n<!-- table") and made.endswith("<!-- end -->\nafter") and "old" not in made
    )
    assert "| 128x384x1536 | 233 | 99.2 | 8.6 |" in made and plots == {}
    assert tables.made(made)[0] == made


ROWS = {
    "rows": [
        {
            "suite": "models",
            "case": "a<b",
            "figure": "latency",
            "unit": "ms",
            "value": 2.0,
            "noise": 0.02,
            "others": 0.5,
            "peers": {"one": {"value": 3.0, "noise": None}, "two": {"value": 60.0, "noise": 0.1}},
        },
        {"suite": "models", "case": "c", "figure": "latency of two", "failed": "it crashed"},
    ]
}


def test_a_table_tells_noise_ratios_disturbance_and_failures():
    lines = suite_table(ROWS, "models").splitlines()
    assert lines[2] == "| a<b | latency | 2 ± 2% ms * | 3 (0.67) | 60 ± 10% (0.03) |"
    assert "failed: it crashed" in lines[3]


def test_the_first_page_has_steady_figures_only():
    def row(case, noise):
        peers = {"onnxruntime": {"value": 3.0, "noise": noise}, "torch": {"value": 9.0, "noise": 5.0}}
        return {"suite": "models", "case": case, "value": 2.0, "noise": 0.01, "peers": peers}

    document = {
        "machine": {"microarchitecture": "znver9"},
        "threads": 4,
        "rows": [row("a", 0.1), row("b", 0.11)],
    }
    lines = headline(document).splitlines()
    assert lines[2:] == ["| a | znver9, 4 threads | **2** | 3 |  |  |", "", lines[-1]]
    assert lines[-1].startswith("Left out: 1 whose") and "Left out" not in headline(
        {**document, "rows": [row("a", 0.0)]}
    )


def test_a_plot_is_a_picture_of_its_own():
    root = ElementTree.fromstring(bars(ROWS, "models"))
    words = [element.text for element in root.iter() if element.tag.endswith("text")]
    assert {"a<b, 2 ms", "1.50", "30.00"} <= set(words)
    widths = [float(element.get("width")) for element in root.iter() if element.tag.endswith("rect")]
    assert max(widths) < 720
