"""Options as ``benchmark_app``, ``onnxruntime_perf_test``, ``trtexec`` and ``mlc_llm`` spell them."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

_OURS = {
    **dict.fromkeys(("onnx", "load_engine", "xml", "m"), "MODEL: it needs no option"),
    **dict.fromkeys(("save_engine", "output", "output_dir", "o"), "--out DIR"),
    **dict.fromkeys(("hint", "nstreams", "num_streams", "c", "nireq", "streams"), "--streams N"),
    **dict.fromkeys(("concurrency", "num_concurrent_requests", "workers", "infer_streams"), "--streams N"),
    **dict.fromkeys(("t", "duration", "time"), "--seconds S"),
    **dict.fromkeys(("niter", "iterations", "n", "r", "repeat", "num_runs"), "--rounds R"),
    **dict.fromkeys(("nthreads", "num_threads", "x", "y", "intra_op"), "--threads N"),
    **dict.fromkeys(("b", "batch_size"), "--batch N"),
    **dict.fromkeys(("s", "seq_len", "sequence_length", "max_seq_len"), "--sequence N"),
    **dict.fromkeys(("d", "e", "device", "provider", "ep"), "--target cpu|npu|cuda"),
    **dict.fromkeys(("shapes", "data_shape", "opt_shapes", "input_shape"), "--shape NAME=1x128"),
    **dict.fromkeys(("min_shapes", "max_shapes"), "--shape NAME=1x8..256, a range of lengths"),
    **dict.fromkeys(("fp16", "half"), "--precision f16"),
    **dict.fromkeys(("bf16", "int8", "tf32"), "--precision {word}"),
    **dict.fromkeys(("infer_precision", "ip", "dtype", "quantization", "quantize"), "--precision NAME"),
    **dict.fromkeys(("i", "load_inputs", "input_data"), "--inputs FILE.npz"),
    **dict.fromkeys(("num_trials", "max_trials", "max_trials_global", "n_trial"), "--trials N"),
    **dict.fromkeys(("work_dir", "cache_dir", "log_dir"), "--logs DIR"),
    **dict.fromkeys(("dump_profile", "pc", "exec_graph_path", "export_profile"), "the command profile"),
    **dict.fromkeys(("report_type", "report_folder", "export_times", "json_stats", "csv"), "--json"),
    "percentile": "told always: p50, p90, p99 and the worst call",
    "avg_runs": "calls are timed one by one",
    **dict.fromkeys(("warmup", "warm_up"), "calls warm up by themselves"),
    **dict.fromkeys(("v", "verbose"), "everything is told already; -q tells less"),
    **dict.fromkeys(("api",), "a call waits for its end; --streams N has N callers at once"),
    **dict.fromkeys(("f", "force"), "files are written anew without it"),
}
"""Our way of what others call so: an option that counts where the command has it, or words."""


def in_our_words(words: Sequence[str], ours: Collection[str]) -> dict[str, str]:
    """Hint for each word that is an option of another tool, for a command whose options are ``ours``."""
    hints = {}
    for word in words:
        given = word.partition("=")[0]
        if not given.startswith("-") or given in ours:
            continue
        name = _snake(given.lstrip("-"))
        said = _OURS.get(name, "").format(word=name)
        if said and (not said.startswith("--") or said.partition(" ")[0] in ours):
            hints[word] = said
    return hints


def _snake(name: str) -> str:
    """``saveEngine`` and ``save-engine`` are both ``save_engine``."""
    return re.sub("([A-Z])", r"_\1", name).replace("-", "_").lower().lstrip("_")
