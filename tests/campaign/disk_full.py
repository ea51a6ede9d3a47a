"""``python -m tests.campaign.disk_full``: a disk that is full at any write of build, tune, export and plan.

Each step runs again and again with one of its folders (the results, the records, the cache of compiled
sources, temporary files) on a file system in memory that has room for so many pages: from none, page by page
or in larger steps, to enough.  Each time either all went well, or there is a message that names a file or
folder and the exit status of an error; what was there before is unchanged, nothing half-written is left, and
the same command succeeds once there is room.  Needs the right to mount (root, or user namespaces).
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests import tiny_llama

PAGE = 4096
_libc = ctypes.CDLL(None, use_errno=True)


class SmallDisk:
    """A file system of so many pages."""

    def __init__(self, folder: Path):
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._mount(1, 0)

    def _mount(self, pages: int, flags: int) -> None:
        options = f"size={max(1, pages) * PAGE},nr_inodes=10000".encode()
        if _libc.mount(b"tmpfs", str(self.folder).encode(), b"tmpfs", flags, options):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

    def resize(self, pages: int) -> None:
        self._mount(max(pages, 1), 32)  # MS_REMOUNT

    def room(self, pages: int) -> None:
        """Leave so many pages free; pages that are in use stay."""
        stats = os.statvfs(self.folder)
        self.resize(stats.f_blocks - stats.f_bfree + pages)
        if pages == 0:  # a file system of its own size has no page for a file
            with contextlib.suppress(OSError), open(self.folder / ".filler", "wb") as file:
                file.write(bytes(os.statvfs(self.folder).f_bavail * PAGE))

    def unmount(self) -> None:
        _libc.umount2(str(self.folder).encode(), 2)


def may_mount() -> bool:
    """Whether this process may mount file systems."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            SmallDisk(Path(folder) / "disk").unmount()
        except OSError:
            return False
    return True


@dataclass(frozen=True)
class Step:
    """A command, and which of its folders is on the small disk.

    Parameters
    ----------
    command : arguments of Python.
    place : name of the folder: ``out``, ``logs``, ``cache`` or ``tmp``.
    codes : exit statuses of a failure.
    """

    name: str
    command: tuple[str, ...]
    place: str
    codes: tuple[int, ...] = (1, 2)


def write_model(path: Path) -> None:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weight = np.random.default_rng(0).standard_normal((64, 96)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Relu", ["a"], ["y"])]
    ends = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [8, 64]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [8, 96]),
    ]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], [numpy_helper.from_array(weight, "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), str(path))


def steps(folder: Path) -> list[Step]:
    """Every command with each of its folders on the small disk."""
    model, out, logs = folder / "model.onnx", folder / "out", folder / "logs"
    common = (str(model), "--out", str(out), "--logs", str(logs), "-q")
    build = ("-m", "hetero_tvm.build", *common)
    tune = ("-m", "hetero_tvm.tune", *common, "--trials", "4")
    quantize = ("-m", "hetero_tvm.quantize", *common, "--no-shipped-records")
    language = ("-m", "hetero_tvm.build", str(folder / "model_llama"), "--out", str(out), "-q")
    ids = ("--prompt-ids", "5,6,7", "--max-new-tokens", "4")
    generate = ("-m", "hetero_tvm.generate", str(folder / "text"), *ids, "-q")
    plan = ("-m", "hetero_tvm.plan", str(folder / "buffers.csv"), "--out", str(out / "plan.csv"), "-q")
    return [
        *(Step(f"build {place}", build, place) for place in ("out", "tmp", "cache")),
        *(Step(f"tune {place}", tune, place) for place in ("logs", "out", "tmp", "cache")),
        Step("plan out", plan, "out"),
        *(Step(f"quantize {place}", quantize, place) for place in ("out", "tmp", "cache")),
        *(Step(f"checkpoint {place}", language, place) for place in ("out", "tmp", "cache")),
        *(Step(f"generate {place}", generate, place) for place in ("tmp", "cache")),
    ]


class Bench:
    """Folder in which steps run; ``disk`` is what is full."""

    def __init__(self, folder: Path):
        self.folder = folder
        write_model(folder / "model.onnx")
        tiny_llama.write(folder / "model_llama")
        rows = [f"b{n},{n},{n + 3},{64 * (n % 7 + 1)}" for n in range(400)]
        (folder / "buffers.csv").write_text("\n".join(["id,lower,upper,size", *rows]) + "\n")

    def places(self) -> dict[str, Path]:
        return {name: self.folder / name for name in ("out", "logs", "cache", "tmp")}

    @contextlib.contextmanager
    def small(self, place: str) -> Iterator[SmallDisk]:
        """The folder ``place`` on a small disk, with what was in it before."""
        target = self.places()[place]
        before = self.folder / "before"
        shutil.rmtree(before, ignore_errors=True)
        if target.exists():
            shutil.copytree(target, before, symlinks=True)
        disk = SmallDisk(target)
        try:
            disk.resize(1 << 18)
            if before.exists():
                shutil.copytree(before, target, symlinks=True, dirs_exist_ok=True)
            yield disk
        finally:
            disk.unmount()

    def run(self, step: Step) -> subprocess.CompletedProcess[str]:
        places = self.places()
        for folder in places.values():
            folder.mkdir(exist_ok=True)
        text = self.folder / "text"
        if step.name.startswith("generate") and not text.exists():
            made = ("-m", "hetero_tvm.build", str(self.folder / "model_llama"), "--out", str(text), "-q")
            subprocess.run([sys.executable, *made], check=True)
        environment = {
            **os.environ,
            "TMPDIR": str(places["tmp"]),
            "HETERO_TVM_CACHE": str(places["cache"]),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        return subprocess.run(
            [sys.executable, *step.command], env=environment, capture_output=True, text=True, errors="replace"
        )

    def content(self, step: Step) -> dict[str, bytes]:
        """Files in the folders of results and records (and none of those that commands may keep)."""
        return {
            str(path.relative_to(self.folder)): path.read_bytes()
            for name in ("out", "logs", "tmp")
            for path in sorted(self.places()[name].rglob("*"))
            if path.is_file() and path.name != ".filler"
        }

    def problems(self, step: Step, pages: int) -> tuple[bool, list[str]]:
        """Run a step with so many free pages; whether it succeeded, and what was wrong about its end."""
        with self.small(step.place) as disk:
            before = self.content(step)
            disk.room(pages)
            result = self.run(step)
            found = self.verdict(step, before, result)
            (self.places()[step.place] / ".filler").unlink(missing_ok=True)
            disk.resize(1 << 18)
            if result.returncode:
                again = self.run(step)
                if again.returncode:
                    found.append(f"the same command then ends with {again.returncode}: {again.stderr[-300:]}")
            if step.name.partition(" ")[0] in ("build", "tune"):
                found += self.library_problems()
        return result.returncode == 0, found

    def verdict(
        self, step: Step, before: dict[str, bytes], result: subprocess.CompletedProcess[str]
    ) -> list[str]:
        """What is wrong about how a step ended."""
        if result.returncode == 0:
            return []
        text, found = result.stderr, []
        if result.returncode not in step.codes:
            found.append(f"it ends with {result.returncode}: {text[-300:]}")
        if "Traceback" in text or "defect of hetero_tvm" in text or "error:" not in text:
            found.append(f"no message of ours: {text[-300:]}")
        elif str(self.folder) not in text:
            found.append(f"the message names no folder: {text[-300:]}")
        after = self.content(step)
        for name, data in before.items():
            if name.startswith("out") and after.get(name) != data:
                found.append(f"{name} was there before and is not the same now")
            if name.startswith("logs") and not after.get(name, b"").startswith(data.rstrip(b"\n")):
                found.append(f"records are lost from {name}")
        found += [
            f"{name} is left"
            for name in after.keys() - before.keys()
            if not name.startswith(("logs", "out/model"))
        ]
        return found

    def library_problems(self) -> list[str]:
        """What is wrong about the library that is there in the end."""
        program = (
            "import sys, numpy, hetero_tvm, onnx.reference as r; x = numpy.ones((8, 64), 'float32')\n"
            "y = r.ReferenceEvaluator(sys.argv[1]).run(None, {'x': x})[0]\n"
            "assert abs(hetero_tvm.load(sys.argv[2], verify=True)(x) - y).max() < 1e-3"
        )
        arguments = [str(self.folder / "model.onnx"), str(self.folder / "out")]
        result = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True)
        return [f"the library is no good: {result.stderr[-300:]}"] if result.returncode else []


def sweep(bench: Bench, step: Step, pages: Iterator[int]) -> Iterator[tuple[int, bool, list[str]]]:
    """Run a step with ever more room, until it succeeds twice in a row without the disk's help."""
    good = 0
    for count in pages:
        succeeded, found = bench.problems(step, count)
        yield count, succeeded, found
        good = good + 1 if succeeded else 0
        if good == 2:
            return


def rising(first: int, factor: float) -> Iterator[int]:
    """0, then page counts that grow by ``factor``, by one page at least."""
    yield 0
    count = float(first)
    while True:
        yield int(count)
        count = max(count + 1, count * factor)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="steps whose name contains this")
    parser.add_argument("--factor", type=float, default=1.0, help="growth of the room (1: page by page)")
    parser.add_argument("--fresh", action="store_true", help="remove older results before each step")
    options = parser.parse_args()
    if not may_mount():
        print(
            "this process may not mount file systems: run it as root, or under `unshare -rm`", file=sys.stderr
        )
        return 2
    wrong = 0
    with tempfile.TemporaryDirectory(prefix="disk-full-") as name:
        bench = Bench(Path(name))
        first = next(step for step in steps(bench.folder) if step.name == "build out")
        assert bench.run(first).returncode == 0  # an older result, which must survive
        for step in steps(bench.folder):
            if options.only not in step.name:
                continue
            if options.fresh:
                shutil.rmtree(bench.places()[step.place], ignore_errors=True)
            failed = runs = 0
            for count, succeeded, found in sweep(bench, step, rising(1, options.factor)):
                runs, failed = runs + 1, failed + (not succeeded)
                for problem in found:
                    print(f"  {step.name}, {count} pages: {problem}", flush=True)
                wrong += bool(found)
            print(f"{step.name:14} {runs:4} runs, {failed:4} on a full disk", flush=True)
    print(f"{wrong} wrong")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
