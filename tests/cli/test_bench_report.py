"""Reports of ``bench``."""

from hetero_tvm.benchmarking.compare import Options, Result
from hetero_tvm.benchmarking.latency import statistics
from hetero_tvm.cli.bench_report import alone_lines, print_comparison


def test_the_figures_of_one_library_fit_80_columns():
    figures = {
        "threads": 2,
        "load_ms": 1234.5,
        "first_call_ms": 3.25,
        "latency": statistics([0.0123, 0.0131, 104.0]),
        "memory": {"before": 36_000_000, "loaded": 120_000_000, "peak": 136_000_000, "file": 90_000_000},
        "streams": [{"streams": 2, "threads_each": 1, "per_second": 12345.6, "calls": [1, 2]}],
    }
    lines = alone_lines("model", figures)
    text = "\n".join(lines)
    assert max(map(len, lines)) <= 80
    assert (
        "0.0131" in text
        and "104" in text
        and "12,346 calls/s, 2 callers" in text
        and "100.0 MB beside" in text
    )


def test_the_comparison(capsys):
    ours = Result("hetero_tvm", version="1", turns=[[1.0, 2.0]], ratio=1.0)
    ours.max_abs_difference = ours.max_rel_difference = 0.0
    failed = Result("openvino", "failed", "no such model")
    print_comparison("m", Options((0, 1), 1), [ours, failed])
    said = capsys.readouterr().out
    assert "m, 2 threads on cores [0, 1], 1 rounds" in said and "1.500" in said
    assert "openvino: failed: no such model" in said


def test_the_comparison_fits_80_columns_with_whole_names(capsys, monkeypatch):
    """Whatever was measured: what matters least is left out, by name."""
    monkeypatch.setenv("COLUMNS", "80")
    results = [Result("hetero_tvm", version="0.1.0", turns=[[0.018, 1234.5]], ratio=1.0)]
    results.append(Result("torch.compile", version="2.13.0+cpu", turns=[[0.1, 4567.8]] * 3, ratio=0.124))
    for one in results:
        one.max_abs_difference = one.max_rel_difference = 3.6e-6
    print_comparison("m", Options((0, 1), 1), results)
    said = capsys.readouterr().out
    assert max(map(len, said.splitlines())) <= 80
    for whole in ("hetero_tvm", "torch.compile", "0.124", "3.6e-06", "median ms"):
        assert whole in said
    assert "p10" in said.partition("left out at 80 columns:")[2]
