"""``python -m tests.campaign.sanitizers``: all our C++ built with sanitizers, under the tests that use it.

AddressSanitizer with UndefinedBehaviorSanitizer everywhere, ThreadSanitizer where C++ has threads.  Prints a
table: sources, sanitizer, tests that ran, reports.  Leaks are not looked for: Python keeps what it likes.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

SOURCES: dict[str, tuple[str, ...]] = {
    "host/cpp": ("tests/host/test_peaks.py",),
    "memory/cpp": ("tests/memory",),
    "runtime/cpp": (
        "tests/runtime/test_programs.py",
        "tests/runtime/test_checksum.py",
        "tests/runtime/test_code.py",
        "tests/runtime/test_library.py",
        "tests/runtime/test_opening.py",
        "tests/compile/test_segment.py",
        "tests/compile/test_weights.py",
        "tests/host/test_expanded.py",
    ),
    "runtime/cpp/pool": (
        "tests/runtime/test_pool.py",
        "tests/runtime/test_threads.py",
        "tests/runtime/test_callers.py",
        "tests/runtime/test_lifetimes.py",
        "tests/runtime/test_observing.py",
        "tests/codegen/test_thread_pool.py",
        # Bounds the memory of a process, of which sanitizers take a share.
        "--deselect=tests/runtime/test_threads.py::test_a_fresh_process_imports_neither_compiler_nor_torch",
    ),
    "runtime/cuda/cpp": (
        "tests/runtime/cuda",
        "tests/targets/cuda/test_emulator.py",
        "tests/targets/cuda/test_device.py",
        "tests/targets/cuda/test_operators.py",
        "tests/targets/cuda/test_models.py",
    ),
    "targets/npu/cpp": (
        "tests/targets/npu/device",
        "tests/targets/npu/isa",
        "tests/targets/npu/regions",
        "tests/targets/npu/tuning",
        "tests/end_to_end/test_npu_models.py",
    ),
    "drivers of design spaces": ("tests/end_to_end/dot_accelerator", "tests/end_to_end/fourth_target"),
}
"""C++ by folder of the package, and the tests that run it."""
THREADED = ("host/cpp", "runtime/cpp/pool", "memory/cpp", "runtime/cuda/cpp", "targets/npu/cpp")
LIBRARIES = {"address,undefined": ("libasan.so", "libubsan.so"), "thread": ("libtsan.so",)}
_REPORT = re.compile(r"(ERROR|WARNING): \w+Sanitizer: .*|.*: runtime error: .*")


def preloaded(sanitizer: str) -> str:
    """The sanitizers' run-time libraries as ``LD_PRELOAD`` has them.

    Raises FileNotFoundError where the compiler has none.
    """
    paths = []
    for name in LIBRARIES[sanitizer]:
        found = subprocess.run(["g++", f"-print-file-name={name}"], capture_output=True, text=True).stdout
        path = Path(found.strip())
        if not path.is_absolute():
            raise FileNotFoundError(f"g++ has no {name}")
        paths.append(str(path.resolve()))
    return ":".join(paths)


def environment(sanitizer: str, folder: Path) -> dict[str, str]:
    """Variables for a process whose C++ is sanitized; reports go to files in ``folder``."""
    log = f"log_path={folder}/report"
    stopped = "halt_on_error=1:abort_on_error=1:print_stacktrace=1"
    return {
        **os.environ,
        "HETERO_TVM_SANITIZE": sanitizer,
        "LD_PRELOAD": preloaded(sanitizer),
        "ASAN_OPTIONS": f"detect_leaks=0:allocator_may_return_null=1:{stopped}:{log}",
        "UBSAN_OPTIONS": f"{stopped}:{log}",
        # Only code that is compiled here is instrumented: what Python and TVM do is not to be judged.
        "TSAN_OPTIONS": f"ignore_noninstrumented_modules=1:report_signal_unsafe=0:exitcode=0:{log}",
    }


def run(sources: str, sanitizer: str, more: list[str]) -> tuple[str, list[str], str]:
    """How the tests ended, the reports, and the last of the output."""
    with tempfile.TemporaryDirectory(prefix="sanitizers-") as name:
        folder = Path(name)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *SOURCES[sources], *more]
        if sanitizer == "thread" and shutil.which("setarch"):
            command = ["setarch", "-R", *command]  # its shadow memory wants fixed places
        variables = environment(sanitizer, folder)
        result = subprocess.run(command, env=variables, cwd=ROOT, capture_output=True, text=True)
        texts = [path.read_text(errors="replace") for path in sorted(folder.glob("report*"))]
    lines = [line.strip() for text in (*texts, result.stdout, result.stderr) for line in text.splitlines()]
    reports = list(dict.fromkeys(line for line in lines if _REPORT.fullmatch(line)))
    counts = re.findall(r"\d+ (?:passed|failed|skipped|error)\w*", result.stdout[-300:])
    ended = ", ".join(counts) or f"status {result.returncode}"
    return (
        ended,
        reports,
        "" if not result.returncode else (result.stdout + result.stderr)[-3000:] + "\n".join(texts),
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.campaign.sanitizers", description=__doc__)
    parser.add_argument("--only", action="append", choices=list(SOURCES), help="sources")
    parser.add_argument("--sanitizer", action="append", choices=list(LIBRARIES))
    parser.add_argument("pytest", nargs="*", help="more options for pytest, after --")
    options = parser.parse_args()
    rows, well = [], True
    for sanitizer in options.sanitizer or LIBRARIES:
        for sources in options.only or SOURCES:
            if sanitizer == "thread" and sources not in THREADED:
                continue
            ended, reports, said = run(sources, sanitizer, options.pytest)
            well = well and not reports and not said
            rows.append(f"| {sources} | {sanitizer} | {ended} | {len(reports)} |")
            print(rows[-1], *reports, said, sep="\n", flush=True)
    print("\n| C++ | sanitizer | tests | reports |\n|---|---|---|---|\n" + "\n".join(rows))
    return 0 if well else 1


if __name__ == "__main__":
    sys.exit(main())
