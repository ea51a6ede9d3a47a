"""The manifest: facts about an exported library that can be read without loading it.

The manifest is JSON in a section of its own inside the ``.so`` (:func:`embed_source` makes the
C++ source for it), and a copy with the file's sha256 lies beside it (:func:`write_sidecar`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import importlib.resources
import json
import mmap
import os
import re
import struct
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from hetero_tvm.errors import BuildError, LibraryError, UsageError
from hetero_tvm.host.files import replaced
from hetero_tvm.host.terminal import number_of
from hetero_tvm.runtime import checksum, elf
from hetero_tvm.runtime.cpuid import FEATURES
from hetero_tvm.runtime.signature import Signature, Step, Symbol, TensorSpec, size_of

VERSION = 1
SECTION = ".hetero_tvm"
# Written in two parts, so that the marker occurs in the libraries only.
MAGIC = b"\x89hetero_tvm" + b"-manifest\r\n\x1a\n"
_HEADER = struct.Struct("<24sIIQ")
_REBUILD = "export the model again"
_WORK = ("flops", "bytes", "weight_bytes")
_COPY_AGAIN = "copy or export it again"


def _at(row: Mapping[str, Any], name: str, sizes: Mapping[str, int]) -> int:
    try:
        return size_of(str(row.get(f"{name}_at", "0")), sizes)
    except KeyError:  # a symbol that no input tells alone
        return 0


@dataclass(frozen=True)
class TargetInfo:
    """Target that a library was built for.  ``isa`` in /proc/cpuinfo naming; ``threads`` as tuned;
    ``archs``: GPU architectures with machine code in the library; ``alignment``: bytes at multiples of which
    kernels want their inputs."""

    kind: str = "cpu"
    cpu: str = ""
    isa: tuple[str, ...] = ()
    threads: int = 1
    archs: tuple[str, ...] = ()
    alignment: int = 64

    def __repr__(self) -> str:
        device = " ".join(filter(None, [self.kind, self.cpu, *self.archs]))
        plural = "s" * (self.threads != 1)
        return f"<TargetInfo: {device}, {len(self.isa)} features, {self.threads} thread{plural}>"

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> TargetInfo:
        """Target that a manifest, or the target itself, describes.  :class:`KeyError` for what is missing."""
        archs, alignment = tuple(data.get("archs", ())), int(data.get("alignment", 64))
        return cls(data["kind"], data["cpu"], tuple(data["isa"]), data["threads"], archs, alignment)


def creation_time() -> str:
    """Time of now that a manifest tells; of ``SOURCE_DATE_EPOCH`` where that is set, in seconds since 1970,
    so that one model built twice gives the same bytes (reproducible-builds.org).

    Raises
    ------
    UsageError : the variable is no such number.
    """
    text = os.environ.get("SOURCE_DATE_EPOCH", "").strip()
    try:
        moment = datetime.fromtimestamp(int(text), timezone.utc) if text else datetime.now(timezone.utc)
    except (ValueError, OverflowError, OSError) as error:
        raise UsageError(
            f"SOURCE_DATE_EPOCH is {text!r}, no number of seconds since 1970", hint="unset it, or give one"
        ) from error
    return moment.isoformat(timespec="seconds")


@dataclass(frozen=True)
class Manifest:
    """A library described, schema 1; ``kernels``, ``memory``, ``accuracy`` are free-form JSON values."""

    name: str
    signature: Signature
    target: TargetInfo = field(default_factory=TargetInfo)
    versions: dict[str, str] = field(default_factory=dict)
    kernels: list[dict[str, Any]] = field(default_factory=list)
    memory: Any = None
    accuracy: Any = None
    device: dict[str, Any] = field(default_factory=dict)
    created: str = ""
    checks: tuple[str, ...] = ()
    """Texts for the numbers behind the results of a library for a device."""
    language: dict[str, Any] = field(default_factory=dict)
    """Facts of a language model (``generation/facts.py``); empty for other models."""
    step: Step | None = None
    """The function that keeps states in place, where there is one."""

    @property
    def constant_results(self) -> frozenset[int]:
        """Results, by number, that may be constants of the library: whoever changes them copies first."""
        return frozenset((self.memory or {}).get("constant_results", ()))

    states: dict[str, str] = field(default_factory=dict)
    """Output that a session finds for an input by its name: what C and C++ hold."""

    def __repr__(self) -> str:
        words = f"{self.signature} for {self.target.kind}: {number_of(len(self.kernels), 'kernel')}"
        return f"<Manifest of {self.name!r} {words}>"

    @property
    def kernel_symbols(self) -> list[str]:
        """Names by which the virtual machine calls the kernels."""
        return [symbol for row in self.kernels for symbol in row.get("symbols") or ()]

    def kernels_at(self, sizes: Mapping[str, int]) -> list[dict[str, Any]]:
        """Rows of the kernels with their work at these sizes of open dimensions, 0 where it is not known."""
        return [{**row, **{name: _at(row, name, sizes) for name in _WORK}} for row in self.kernels]

    def to_json(self) -> dict[str, Any]:
        """A dict of plain JSON values, ``manifest_version`` first."""
        return {
            "manifest_version": VERSION,
            "name": self.name,
            "signature": {
                "inputs": [spec.to_json() for spec in self.signature.inputs],
                "outputs": [spec.to_json() for spec in self.signature.outputs],
                "symbols": [symbol.to_json() for symbol in self.signature.symbols],
            },
            **({"states": self.states} if self.states else {}),
            "target": {
                **dataclasses.asdict(self.target),
                "isa": list(self.target.isa),
                "archs": list(self.target.archs),
            },
            "versions": dict(self.versions),
            "kernels": self.kernels,
            "memory": self.memory,
            "accuracy": self.accuracy,
            "device": self.device,
            "created": self.created,
            "checks": list(self.checks),
            **({"language": self.language} if self.language else {}),
            **({"step": self.step.to_json()} if self.step else {}),
        }

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Manifest:
        """Read :meth:`to_json`'s dict; unknown keys are ignored.

        Raises :class:`LibraryError` for another schema version or a missing key.
        """
        version = data.get("manifest_version") if isinstance(data, dict) else None
        if version != VERSION:
            raise LibraryError(
                f"the manifest has version {version}, this hetero_tvm reads version {VERSION}",
                hint="upgrade hetero-tvm" if isinstance(version, int) and version > VERSION else _REBUILD,
            )
        try:
            ends = data["signature"]
            _check_types(data)
            return cls(
                name=data["name"],
                signature=Signature(
                    *(tuple(map(TensorSpec.from_json, ends[side])) for side in ("inputs", "outputs")),
                    tuple(map(Symbol.from_json, ends.get("symbols", ()))),
                ),
                target=TargetInfo.from_json(data["target"]),
                versions=dict(data["versions"]),
                kernels=list(data["kernels"]),
                memory=data.get("memory"),
                accuracy=data.get("accuracy"),
                device=dict(data.get("device") or {}),
                created=data.get("created", ""),
                checks=tuple(data.get("checks", ())),
                language=dict(data.get("language") or {}),
                step=Step.from_json(data["step"]) if data.get("step") else None,
                states={str(name): str(output) for name, output in (data.get("states") or {}).items()},
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise LibraryError(f"the manifest is damaged ({error!r})", hint=_REBUILD) from error


def _check_types(data: dict[str, Any]) -> None:
    """Refuse values that would fail later, where nobody expects them.  TypeError, ValueError, KeyError."""
    target = data["target"]
    texts = [data["name"], target["kind"], target["cpu"], *target["isa"], *target.get("archs", ())]
    texts += [*data["versions"], *data["versions"].values(), *data.get("checks", ())]
    for side in ("inputs", "outputs"):
        for spec in data["signature"][side]:
            texts += [spec["name"], spec["dtype"]]
            if not re.fullmatch(r"[a-z]+[0-9]*\w*", spec["dtype"]):
                raise ValueError(f"dtype {spec['dtype']!r}")
            for size in spec["shape"]:
                if isinstance(size, bool) or not isinstance(size, str) and not 0 <= size < 1 << 62:
                    raise ValueError(f"shape {spec['shape']}")
    for text in texts:
        if not isinstance(text, str):
            raise TypeError(f"{text!r} is no text")


def refuse_flagged(name: str, checks: Sequence[str], flags: Iterable[int]) -> None:
    """Raise what the numbers behind the results of a call say.

    Raises
    ------
    LibraryError : one is not 0; lists all that is wrong.
    """
    problems = [text for text, flag in zip(checks, flags, strict=True) if flag]
    if problems:
        raise LibraryError(
            f"{name} failed: {problems[0]}",
            problems=problems[1:],
            hint="the results of this call mean nothing; no memory but the model's own was read or written",
        )


def current_versions() -> dict[str, str]:
    """Installed versions for :attr:`Manifest.versions`; what is not installed is left out."""
    versions = {}
    for key, distribution in (
        ("hetero_tvm", "hetero-tvm"),
        ("tvm", "apache-tvm"),
        ("tvm_ffi", "apache-tvm-ffi"),
    ):
        try:
            versions[key] = importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    bundled = Path(__file__).parent / "lib" / "VERSION"
    if "tvm" not in versions and bundled.is_file():  # a wheel of the runtime alone
        versions["tvm"] = bundled.read_text(encoding="utf-8").strip()
    return versions


def embed_source(manifest: Manifest) -> str:
    """C++ source that carries ``manifest``; compile it into the library (``addons=[file]``).

    Compile it without ``-march`` flags.  It exports ``const char* hetero_tvm_manifest(void)``
    and ``int hetero_tvm_check_cpu(char* message, size_t size)``.  Once it is linked,
    :func:`hetero_tvm.runtime.checksum.seal` completes it.

    Raises :class:`BuildError` for an x86 feature name that the check does not know.
    """
    text = json.dumps(manifest.to_json(), separators=(",", ":"), allow_nan=False)
    x86 = manifest.target.cpu == "" or not _is_arm(manifest.target.isa)
    unknown = sorted(set(manifest.target.isa) - FEATURES.keys()) if x86 else []
    if unknown:
        raise BuildError(
            f"no CPU check for the features {', '.join(unknown)}",
            hint="add them to hetero_tvm/runtime/cpuid.py, or leave them out of the manifest's isa",
        )
    features = "".join(
        f'    {{"{name}", {", ".join(f"{number}u" for number in FEATURES[name])}}},\n'
        for name in manifest.target.isa
        if name in FEATURES
    )
    values = {
        "SIZE": str(len(text)),
        "SECTION": SECTION,
        "MAGIC": _c_bytes(MAGIC.ljust(24, b"\0")),
        "SUMSECTION": checksum.SECTION,
        "SUMMAGIC": _c_bytes(checksum.MAGIC),
        "SUMMAGICSIZE": str(len(checksum.MAGIC)),
        "SUMSIZE": str(checksum.SIZE),
        "VERSION": str(VERSION),
        "CRC": str(zlib.crc32(text.encode())),
        "JSON": _c_string(text),
        "FEATURES": features,
        "CPU": _escape(manifest.target.cpu.encode("ascii", "replace").decode() or "another CPU"),
    }
    source = (
        importlib.resources.files("hetero_tvm.runtime")
        .joinpath("cpp/embed.cc.in")
        .read_text(encoding="utf-8")
    )
    # One pass: a value may look like another placeholder.
    return re.sub(r"@([A-Z]+)@", lambda match: values[match[1]], source)


def _is_arm(isa: tuple[str, ...]) -> bool:
    return "asimd" in isa or "neon" in isa


def _escape(text: str) -> str:
    """``text`` (ASCII) for the inside of a C string literal; ``?`` too, because of trigraphs."""
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("?", "\\?")


def _c_bytes(data: bytes) -> str:
    return ", ".join(f"static_cast<char>({byte})" for byte in data)


def _c_string(text: str, width: int = 100) -> str:
    pieces = [text[at : at + width] for at in range(0, len(text), width)] or [""]
    return "\n".join(f'    "{_escape(piece)}"' for piece in pieces)


def read_manifest(path: str | os.PathLike[str]) -> Manifest:
    """Read the manifest of a library without loading it.

    Raises :class:`LibraryError` when the file is missing, cut off, damaged, or was not made by
    hetero_tvm.
    """
    path = Path(path)
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            text = _find(path, data)
    except PermissionError as error:
        raise elf.forbidden(path, error) from error
    except (OSError, ValueError) as error:  # an empty file cannot be mapped: ValueError
        raise LibraryError(f"cannot read {path}: {error}", hint="export the model again") from error
    try:
        return Manifest.from_json(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise LibraryError(f"the manifest of {path} is damaged ({error})", hint=_REBUILD) from error


def _find(path: Path, data: mmap.mmap) -> bytes:
    """The manifest's JSON text, found by the section table, else (it was stripped) by the marker."""
    try:
        section = elf.section(data, SECTION.encode())
    except (ValueError, struct.error) as error:
        raise LibraryError(f"{path} is cut off or damaged ({error})", hint=_COPY_AGAIN) from error
    at = section[0] if section else data.find(MAGIC)
    if at < 0:
        raise LibraryError(
            f"{path} carries no manifest: it was not exported by hetero_tvm",
            hint="export it with hetero_tvm.build_model(...).export(path)",
        )
    if at + _HEADER.size > len(data):
        raise LibraryError(f"{path} is cut off", hint=_COPY_AGAIN)
    magic, version, crc, size = _HEADER.unpack_from(data, at)
    text = data[at + _HEADER.size : at + _HEADER.size + size]
    if magic.rstrip(b"\0") != MAGIC or len(text) != size or zlib.crc32(text) != crc:
        raise LibraryError(f"the manifest of {path} is damaged (wrong checksum)", hint=_COPY_AGAIN)
    if version != VERSION:
        Manifest.from_json({"manifest_version": version})  # raises the error that says what to do
    return text


def sidecar_path(so_path: str | os.PathLike[str]) -> Path:
    """``out/model.so`` -> ``out/model.manifest.json``."""
    return Path(so_path).with_suffix(".manifest.json")


def write_sidecar(so_path: str | os.PathLike[str], manifest: Manifest) -> Path:
    """Write the readable copy of ``manifest`` beside the library, with the library's sha256."""
    target = sidecar_path(so_path)
    text = json.dumps({**manifest.to_json(), "sha256": file_sha256(so_path)}, indent=1)
    with replaced(target) as fresh:
        fresh.write_text(text + "\n", encoding="utf-8")
    return target


def verify_sidecar(so_path: Path) -> None:
    """Compare the library with the sha256 in its sidecar, when there is one.

    Raises :class:`LibraryError` when they differ or the sidecar cannot be read.
    """
    target = sidecar_path(so_path)
    if not target.exists():
        return
    try:
        expected = json.loads(target.read_text(encoding="utf-8"))["sha256"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise LibraryError(f"cannot read the sha256 in {target} ({error!r})", hint=_REBUILD) from error
    actual = file_sha256(so_path)
    if actual != expected:
        raise LibraryError(
            f"{so_path} is not the file that was exported",
            problems=[f"sha256 now {actual}", f"in {target.name} {expected}"],
            hint="copy or export both files again",
        )


def file_sha256(path: str | os.PathLike[str]) -> str:
    """Hex digest of a file's content."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
