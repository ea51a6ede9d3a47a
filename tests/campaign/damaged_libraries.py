"""``python -m tests.campaign.damaged_libraries``: damaged libraries, manifests and planning problems.

A case is a good file and one damage to it: a flipped bit in each section and header of a library, zeros where
a page was, a file cut off at 200 places, an edited manifest (with all checksums put right, as somebody who
edits it on purpose would), a damaged sidecar, a damaged CSV.  Each is opened in a process of its own and must
end in an error of ours or in the right numbers.  Anything else is a fault: another exception, a signal, a
hang, wrong numbers.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import multiprocessing
import os
import random
import struct
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

REFUSED, RIGHT, WRONG, BROKEN = "refused", "right", "wrong", "broken"
FAULTS = (WRONG, BROKEN)
ROWS, WIDTH = 4, 64
_SECONDS = 120


@dataclass(frozen=True)
class Case:
    """A damaged file: its kind, what was done to it, its bytes, and the file beside it, if any."""

    kind: str
    name: str
    data: bytes
    beside: bytes | None = None


@dataclass(frozen=True)
class Good:
    """The library that is damaged, what it computes, and its sidecar."""

    library: bytes
    sidecar: bytes
    inputs: np.ndarray
    outputs: np.ndarray


def good(folder: Path) -> Good:
    """Export a small model: ``relu(x @ w) @ v`` with weights of 64 x 64."""
    from onnx import numpy_helper, parser

    from hetero_tvm.api import build_model, import_model, optimize_model

    type_ = f"float[{ROWS}, {WIDTH}]"
    text = f"g ({type_} x) => ({type_} y) {{ a = MatMul(x, w) b = Relu(a) y = MatMul(b, v) }}"
    model = parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {text}')
    rng = np.random.default_rng(0)
    w, v = (rng.standard_normal((WIDTH, WIDTH)).astype("float32") for _ in range(2))
    model.graph.initializer.extend(numpy_helper.from_array(a, n) for a, n in ((w, "w"), (v, "v")))
    path = build_model(optimize_model(import_model(model))).export(folder / "model.so")
    x = rng.standard_normal((ROWS, WIDTH)).astype("float32")
    sidecar = path.with_suffix(".manifest.json").read_bytes()
    return Good(path.read_bytes(), sidecar, x, np.maximum(x.astype(float) @ w, 0) @ v)


# damages ---------------------------------------------------------------------------------------


def regions(library: bytes) -> dict[str, tuple[int, int]]:
    """(start, end) in the file of the headers and of each section, by name."""
    table, names_index = struct.unpack_from("<Q", library, 40)[0], struct.unpack_from("<H", library, 62)[0]
    count = struct.unpack_from("<H", library, 60)[0]
    segments, parts = struct.unpack_from("<Q", library, 32)[0], struct.unpack_from("<H", library, 56)[0]
    found = {
        "ELF header": (0, 64),
        "program headers": (segments, segments + 56 * parts),
        "section headers": (table, table + 64 * count),
    }
    names_at = struct.unpack_from("<Q", library, table + 64 * names_index + 24)[0]
    for index in range(count):
        label, kind = struct.unpack_from("<II", library, table + 64 * index)
        offset, size = struct.unpack_from("<QQ", library, table + 64 * index + 24)
        name = library[names_at + label : library.index(b"\0", names_at + label)].decode()
        if kind not in (0, 8) and size:  # nothing, and what takes no room in the file
            found[name] = (offset, offset + size)
    return found


def flips(base: Good, each: int, rng: random.Random) -> Iterator[Case]:
    """One bit, in each region ``each`` times."""
    for name, (start, end) in regions(base.library).items():
        for _ in range(each):
            data, at = bytearray(base.library), rng.randrange(start, end)
            data[at] ^= 1 << rng.randrange(8)
            yield Case("flip", f"{name} at {at}", bytes(data))


def zeros(base: Good, count: int, rng: random.Random) -> Iterator[Case]:
    """A page that was never written, or a region of zeros."""
    for name, (start, end) in regions(base.library).items():
        data = base.library[:start] + bytes(end - start) + base.library[end:]
        yield Case("zeros", f"all of {name}", data)
    for _ in range(count):
        at = rng.randrange(0, len(base.library), 4096)
        data = bytearray(base.library)
        data[at : at + 4096] = bytes(len(data[at : at + 4096]))
        yield Case("zeros", f"page at {at}", bytes(data))


def cuts(base: Good, count: int, rng: random.Random) -> Iterator[Case]:
    """The file cut off, at even distances, and at both ends of each region."""
    size = len(base.library)
    places = {size * number // count for number in range(count)}
    places |= {at for region in regions(base.library).values() for at in region if at < size}
    for at in sorted(places):
        yield Case("cut off", f"at {at}", base.library[:at])
    for number in range(5):
        more = rng.randbytes(10**number)
        yield Case("cut off", f"with {len(more)} bytes more", base.library + more)


VALUES: tuple[Any, ...] = (
    None, True, -1, 0, 1e30, 2**31, 2**63, 2**70, "", "x" * 9, "\ud800", [], {}, [None], [[[]]], {"a": 1},
)  # fmt: skip


def edits(base: Good, count: int, rng: random.Random) -> Iterator[Case]:
    """A value of the manifest changed or left out, bytes of its text changed; all checksums put right."""
    from hetero_tvm.runtime.manifest import MAGIC

    at = base.library.find(MAGIC)
    head = struct.Struct("<24sIIQ")
    _, version, _, size = head.unpack_from(base.library, at)
    text = base.library[at + head.size : at + head.size + size]
    for number in range(count):
        if number % 4 == 0:
            other = bytearray(text)
            for _ in range(rng.randint(1, 4)):
                other[rng.randrange(len(other))] = rng.randrange(256)
            name, changed = "bytes of the text", bytes(other)
        else:
            tree = json.loads(text)
            name = _edit(tree, rng)
            changed = json.dumps(tree, separators=(",", ":")).encode()
        if len(changed) > size:
            tree = json.loads(changed)  # room for it: what is long and free-form goes
            tree["kernels"], tree["memory"] = [], None
            changed = json.dumps(tree, separators=(",", ":")).encode()
        changed = changed.ljust(size)[:size]
        data = base.library[:at] + head.pack(MAGIC, version, zlib.crc32(changed), size) + changed
        yield Case("manifest", name, _sealed(data + base.library[at + head.size + size :]))
    for version in (0, 2, 2**32 - 1):
        data = base.library[:at] + head.pack(MAGIC, version, zlib.crc32(text), size)
        yield Case("manifest", f"format {version}", _sealed(data + base.library[at + head.size :]))
    data = base.library[:at] + head.pack(MAGIC, 1, zlib.crc32(text), 2**63)
    yield Case("manifest", "size 2**63", _sealed(data + base.library[at + head.size :]))


def _edit(tree: dict[str, Any], rng: random.Random) -> str:
    """Change or leave out one value somewhere in a tree; returns where."""
    path, inner = [], tree
    while True:
        key = rng.choice(list(inner) if isinstance(inner, dict) else range(len(inner)))
        path.append(str(key))
        deeper = isinstance(inner[key], dict | list) and len(inner[key]) > 0
        if deeper and rng.random() < 0.8:
            inner = inner[key]
            continue
        if isinstance(inner, dict) and rng.random() < 0.25:
            del inner[key]
            return "without " + ".".join(path)
        inner[key] = rng.choice(VALUES)
        return f"{'.'.join(path)} = {str(inner[key])[:20].encode('ascii', 'replace').decode()}"


def _sealed(library: bytes) -> bytes:
    """A library with the checksum of code and constants put right."""
    from hetero_tvm.runtime import checksum

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "edited.so"
        path.write_bytes(library)
        checksum.seal(path)
        return path.read_bytes()


def sidecars(base: Good, count: int, rng: random.Random) -> Iterator[Case]:
    """A sidecar that was damaged, and is asked for."""
    for number in range(count):
        data = bytearray(base.sidecar)
        if number % 2:
            del data[rng.randrange(len(data)) :]
        else:
            data[rng.randrange(len(data))] = rng.randrange(256)
        yield Case("sidecar", f"#{number}", base.library, bytes(data))
    for other in (b"", b"null", b"[]", b'{"sha256": 5}', b'{"sha256": null}', b"[" * 100_000, b"\xff\xfe"):
        yield Case("sidecar", repr(other[:20]), base.library, other)


CSV = "id,lower,upper,size,alignment\n" + "".join(
    f"b{i},{i % 7},{i % 7 + 1 + i % 5},{16 + 8 * (i % 9)},{1 << i % 4}\n" for i in range(24)
)
CELLS = (
    "", "-1", "x", "1e9", "0x10", "9" * 30, "9" * 5000, str(2**62), str(2**63), "1.5", '"', "\0", "nan",
    " 7 ", "\u0663",
)  # fmt: skip


def problems(count: int, rng: random.Random) -> Iterator[Case]:
    """A planning problem with cells, bytes, rows or columns changed."""
    for number in range(count):
        kind = ("cell", "bytes", "row", "column", "cut off")[number % 5]
        rows = [line.split(",") for line in CSV.splitlines()]
        if kind == "cell":
            rng.choice(rows)[rng.randrange(5)] = rng.choice(CELLS)
        elif kind == "row":
            row = rng.choice(rows)
            row[:] = rng.choice([row[:2], row * 2, [",".join(row)], ['"' + row[0], *row[1:]], rows[0]])
        elif kind == "column":
            column = rng.randrange(5)
            for row in rows:
                row[column : column + 1] = rng.choice(([], [row[column]] * 2))
        data = bytearray("\n".join(map(",".join, rows)).encode() + b"\n")
        if kind == "bytes":
            for _ in range(rng.randint(1, 6)):
                data[rng.randrange(len(data))] = rng.randrange(256)
        elif kind == "cut off":
            del data[rng.randrange(len(data)) :]
        yield Case("problem", f"{kind} #{number}", bytes(data))


# what becomes of them -------------------------------------------------------------------------


def outcome(case: Case, base: Good | None) -> tuple[str, str]:
    """How a case ends, and why; in a process of its own."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.get_context("fork").Process(target=_child, args=(case, base, theirs))
    child.start()
    theirs.close()
    said = None
    with contextlib.suppress(EOFError):
        said = ours.recv() if ours.poll(_SECONDS) else None
    if said is None:
        child.kill()
    child.join()
    return said or (BROKEN, f"ended with {child.exitcode}")


def _child(case: Case, base: Good | None, answer: Connection) -> None:
    from hetero_tvm.errors import HeteroTVMError

    with tempfile.TemporaryDirectory() as folder:
        try:
            said = _plan(case, Path(folder)) if case.kind == "problem" else _run(case, base, Path(folder))
        except HeteroTVMError as error:
            said = REFUSED, str(error)
        except BaseException as error:
            said = BROKEN, f"{type(error).__name__}: {error}"
        answer.send(said)
    os._exit(0)


def _run(case: Case, base: Good, folder: Path) -> tuple[str, str]:
    from hetero_tvm.runtime import load

    path = folder / "model.so"
    path.write_bytes(case.data)
    if case.beside is not None:
        path.with_suffix(".manifest.json").write_bytes(case.beside)
    result = load(path, threads=1, verify=None if case.beside is None else True)(base.inputs)
    result = np.asarray(result[0] if isinstance(result, list | tuple) else result, float)
    if result.shape == base.outputs.shape and np.allclose(result, base.outputs, rtol=1e-4, atol=1e-3):
        return RIGHT, ""
    return WRONG, f"{result.ravel()[:3]} instead of {base.outputs.ravel()[:3]}"


def _plan(case: Case, folder: Path) -> tuple[str, str]:
    """Plan by the command; its own plan is read back and checked."""
    from hetero_tvm import plan
    from hetero_tvm.memory import check_plan, read_csv

    path, out, said = folder / "problem.csv", folder / "out.csv", io.StringIO()
    path.write_bytes(case.data)
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = plan.main([str(path), "--seconds", "1", "--verify", "--out", str(out)])
    if code == 0:
        check_plan(*read_csv(out))
        return RIGHT, ""
    refused = code == 2 and "Traceback" not in said.getvalue()
    return (REFUSED if refused else BROKEN), said.getvalue()


def cases(base: Good, scale: float, seed: int) -> Iterator[Case]:
    """All cases; ``scale`` 1 is some 900 of them."""
    rng = random.Random(seed)

    def share(count: int) -> int:
        return max(1, round(count * scale))

    yield from flips(base, share(8), rng)
    yield from zeros(base, share(40), rng)
    yield from cuts(base, share(200), rng)
    yield from edits(base, share(200), rng)
    yield from sidecars(base, share(30), rng)
    yield from problems(share(150), rng)


def run(scale: float, seed: int, say: Callable[[str], None] = print) -> dict[str, Counter[str]]:
    """Try all cases; ends per kind.  Faults are told as they come."""
    for module in ("hetero_tvm.runtime", "hetero_tvm.plan", "hetero_tvm.memory.plot"):
        importlib.import_module(module)  # once, before the processes fork
    ends: dict[str, Counter[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        base = good(Path(folder))
        for case in cases(base, scale, seed):
            end, why = outcome(case, base)
            ends.setdefault(case.kind, Counter())[end] += 1
            if end in FAULTS:
                say(f"{end}: {case.kind}, {case.name}: {why[:500]}")
    return ends


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="share of the cases (default: 1, about 900)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    ends = run(options.scale, options.seed)
    for kind, counts in ends.items():
        print(f"{kind:10}", ", ".join(f"{count} {end}" for end, count in sorted(counts.items())))
    faults = sum(counts[end] for counts in ends.values() for end in FAULTS)
    print(f"{sum(map(Counter.total, ends.values()))} files, {faults} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
