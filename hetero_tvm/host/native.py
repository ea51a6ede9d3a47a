"""Compilation of the C++ sources that ship with this package, each once, into a cache.

The key of a cached file is the hash of everything that decides its content: sources, the
headers they include by quotes, flags, the compiler's version, and (for ``-march=native``) the
features of this CPU.  A stale file can therefore never be taken, and nothing is ever deleted.  Beside each
file is its checksum: one that a crash or a full disk has damaged is compiled again.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import importlib.resources
import os
import platform
import re
import shlex
import shutil
import stat
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path

from hetero_tvm.errors import NativeBuildError
from hetero_tvm.host.cpu import cpu_features
from hetero_tvm.host.files import replaced, sync
from hetero_tvm.host.folders import spare_cache, user_cache
from hetero_tvm.host.scratch import scratch_folder

CACHE_VARIABLE = "HETERO_TVM_CACHE"
SANITIZE_VARIABLE = "HETERO_TVM_SANITIZE"
"""Names sanitizers (``address,undefined`` or ``thread``): all C++ is then compiled with them, into a cache of
its own.  A process needs their run-time libraries first (``LD_PRELOAD``; tests/campaign/sanitizers.py)."""
DEFAULT_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-shared", "-pthread")
_COMPILERS = ("g++", "clang++", "c++")
_ERROR_LINES = 12
_OTHER_FOLDER = f"name a writable folder with room: export {CACHE_VARIABLE}=/path/to/folder"


def cache_dir() -> Path:
    """Folder of compiled libraries: ``$HETERO_TVM_CACHE``, else the user's cache folder."""
    chosen = os.environ.get(CACHE_VARIABLE)
    return _of_this_build(Path(chosen).expanduser() if chosen else user_cache() / "native")


def spare_dir() -> Path | None:
    """Folder of what the user's cache does not have where that cannot be written to; None where it can, or
    ``$HETERO_TVM_CACHE`` names one."""
    spare = None if os.environ.get(CACHE_VARIABLE) else spare_cache()
    return None if spare is None else _of_this_build(spare / "native")


def _of_this_build(folder: Path) -> Path:
    """Folder of libraries with or without sanitizers."""
    sanitizers = os.environ.get(SANITIZE_VARIABLE)
    return folder / f"sanitized-{sanitizers.replace(',', '-')}" if sanitizers else folder


def sanitizer_options() -> list[str]:
    """Options that the compiler gets for ``$HETERO_TVM_SANITIZE``; [] without."""
    chosen = os.environ.get(SANITIZE_VARIABLE)
    return [f"-fsanitize={chosen}", "-fno-omit-frame-pointer", "-g"] if chosen else []


def find_compiler() -> list[str]:
    """The C++ compiler as a command: ``$CXX`` (may carry options), else g++, clang++ or c++.

    ``$HETERO_TVM_SANITIZE`` adds the options of sanitizers.

    Raises :class:`NativeBuildError` that names the command which installs one.
    """
    try:
        chosen = shlex.split(os.environ.get("CXX", ""))
    except ValueError as error:
        raise NativeBuildError(f"CXX={os.environ['CXX']!r} is no command: {error}", hint="CXX=g++") from error
    for command in [chosen] if chosen else [[name] for name in _COMPILERS]:
        if path := shutil.which(command[0]):
            return [path, *command[1:], *sanitizer_options()]
    wanted = f"CXX={os.environ['CXX']!r}" if chosen else "none of " + ", ".join(_COMPILERS)
    raise NativeBuildError(
        f"no C++ compiler: {wanted} is not on the PATH"
        if chosen
        else f"no C++ compiler: {wanted} on the PATH",
        hint="sudo apt-get install -y g++    (or: conda install -c conda-forge cxx-compiler)",
    )


def source_path(name: str | Path) -> Path:
    """Path of a source: an absolute one as it is, a relative one inside the package ``hetero_tvm``.

    Raises :class:`NativeBuildError` when there is no such file.
    """
    path = Path(name)
    if not path.is_absolute():
        path = Path(str(importlib.resources.files("hetero_tvm").joinpath(path.as_posix())))
    if not path.is_file():
        raise NativeBuildError(
            f"source file not found: {path}",
            hint="reinstall the package from its checkout or wheel: pip install --force-reinstall",
        )
    return path


def compile_shared(
    sources: Iterable[str | Path],
    *,
    flags: Sequence[str] = (),
    include: Iterable[str | Path] = (),
    name: str,
) -> Path:
    """Compile C++ sources to a shared library and return its path; later calls find it cached.

    Parameters
    ----------
    sources : files, absolute or relative to the ``hetero_tvm`` package.
    flags : compiler and linker flags, after :data:`DEFAULT_FLAGS`, so that they win.
    include : folders for ``-I``, absolute or relative to the package.
    name : readable start of the library's file name.

    Several processes may ask at once: each writes in a folder of its own and renames the result.

    Raises :class:`NativeBuildError` with the compiler's first lines and the command.
    """
    return _compile(sources, [*DEFAULT_FLAGS, *flags], include, name, ".so")


def compile_object(
    sources: Iterable[str | Path],
    *,
    flags: Sequence[str] = (),
    include: Iterable[str | Path] = (),
    name: str,
) -> Path:
    """Compile C++ sources, as :func:`compile_shared`, to one relocatable object for exported libraries."""
    options = [flag for flag in DEFAULT_FLAGS if flag != "-shared"]
    return _compile(sources, [*options, "-r", "-nostdlib", *flags], include, name, ".o")


def compile_header(header: str | Path, *, flags: Sequence[str] = (), name: str) -> Path:
    """Precompile a header; gives a folder to stand first in ``include``.

    With g++, sources that include ``header`` by its name and are compiled with the same ``flags`` then read
    it as it was compiled here, once.

    Other compilers read the header itself, which therefore must be found in a later folder.
    """
    file = source_path(header)
    options = [flag for flag in DEFAULT_FLAGS if flag != "-shared"]
    compiled = _compile([file], [*options, *flags], (), name, ".gch")
    folder = compiled.with_suffix(".d")
    if not (link := folder / f"{file.name}.gch").exists():
        fresh = folder / f".{os.getpid()}.gch"
        try:
            folder.mkdir(exist_ok=True)
            os.symlink(compiled, fresh)
            os.replace(fresh, link)
        except OSError as error:
            raise NativeBuildError(
                f"cannot write to the cache folder {folder}: {error.strerror}", hint=_OTHER_FOLDER
            ) from error
    return folder


def _compile(
    sources: Iterable[str | Path],
    flags: Sequence[str],
    include: Iterable[str | Path],
    name: str,
    suffix: str,
) -> Path:
    files = [source_path(source) for source in sources]
    folders = [_folder(folder) for folder in include]
    compiler = find_compiler()
    if sanitizer_options():
        # With -O2, checks in inlined code take minutes to compile.  What -O1 alone lacks are fused
        # multiply-adds, and the NPU's simulator rounds each step of a sum once.
        flags = [*flags, "-O1", "-fexpensive-optimizations"]
    file_name = f"{name}-{_key(files, folders, flags, compiler)[:20]}{suffix}"
    target = cache_dir() / file_name
    if _whole(target):
        return target
    if (spare := spare_dir()) is not None:
        target = spare / file_name
        if _whole(target):
            return target
    for file in (target, _checksum_path(target)):
        if file.is_dir():
            raise NativeBuildError(
                f"{file} is a folder, where the cache has a compiled file",
                hint=f"rm -r {shlex.quote(str(file))}",
            )
    command = [*compiler, *map(str, files), *(f"-I{folder}" for folder in folders), *flags]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with scratch_folder(target.parent, f".{name}-") as folder:
            fresh = folder / target.name
            _run([*command, "-o", str(fresh)], name, folder)
            os.chmod(fresh, 0o755)
            sync(fresh)
            digest = _digest(fresh)
            os.replace(fresh, target)
        with replaced(_checksum_path(target)) as fresh:
            fresh.write_text(digest + "\n", encoding="utf-8")
    except OSError as error:
        raise NativeBuildError(
            f"cannot write to the cache folder {target.parent}: {error.strerror}", hint=_OTHER_FOLDER
        ) from error
    return target


def _checksum_path(file: Path) -> Path:
    return file.with_name(file.name + ".sha256")


def _digest(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _whole(file: Path) -> bool:
    """Whether a cached file is there, and what was compiled; read once for each state of the file."""
    try:
        status = file.stat()
        if not stat.S_ISREG(status.st_mode):
            return False
        identity = (str(file), status.st_ino, status.st_mtime_ns, status.st_size)
        if identity not in _seen:
            if _checksum_path(file).read_text(encoding="utf-8").strip() != _digest(file):
                return False
            _seen.add(identity)
    except (OSError, ValueError):
        return False
    return True


_seen: set[tuple[str, int, int, int]] = set()


def _run(command: list[str], name: str, folder: Path) -> None:
    try:
        environment = {**os.environ, "TMPDIR": str(folder)}
        result = subprocess.run(command, capture_output=True, text=True, errors="replace", env=environment)
    except OSError as error:
        raise NativeBuildError(f"cannot run the compiler {command[0]}: {error.strerror}") from error
    if result.returncode and os.strerror(errno.ENOSPC) in result.stderr + result.stdout:
        raise NativeBuildError(
            f"compiling {name!r} failed: no room on the disk of {folder.parent}",
            hint=f"free some space, or {_OTHER_FOLDER}",
        )
    if result.returncode:
        lines = (result.stderr or result.stdout).strip().splitlines()
        more = [f"... {len(lines) - _ERROR_LINES} more lines"] if len(lines) > _ERROR_LINES else []
        raise NativeBuildError(
            f"compiling {name!r} failed (exit status {result.returncode})",
            problems=[*lines[:_ERROR_LINES], *more],
            hint=f"run it by hand: {shlex.join(command)}",
        )


def _folder(folder: str | Path) -> Path:
    path = Path(folder)
    if path.is_absolute():
        return path
    return Path(str(importlib.resources.files("hetero_tvm").joinpath(path.as_posix())))


def _key(files: list[Path], folders: list[Path], flags: Sequence[str], compiler: list[str]) -> str:
    digest = hashlib.sha256()

    def add(*parts: str | bytes) -> None:
        for part in parts:
            data = part.encode() if isinstance(part, str) else part
            digest.update(f"{len(data)}:".encode() + data)

    add(platform.machine(), _compiler_version(tuple(compiler)), *compiler[1:], "|", *flags)
    for file in _with_headers(files, folders):
        add(file.name, file.read_bytes())
    if any(flag.startswith(("-march=native", "-mcpu=native", "-mtune=native")) for flag in flags):
        add(*sorted(cpu_features()))
    return digest.hexdigest()


@functools.lru_cache(maxsize=4)
def _compiler_version(compiler: tuple[str, ...]) -> str:
    try:
        result = subprocess.run([*compiler, "--version"], capture_output=True, text=True)
    except OSError as error:
        raise NativeBuildError(f"cannot run the compiler {compiler[0]}: {error.strerror}") from error
    return result.stdout.splitlines()[0] if result.stdout else compiler[0]


def _with_headers(files: list[Path], folders: list[Path]) -> list[Path]:
    """The sources and every header that they include by quotes, each once, in a fixed order."""
    found: list[Path] = []
    queue = list(files)
    while queue:
        file = queue.pop(0)
        if file in found:
            continue
        found.append(file)
        for header in re.findall(rb'^\s*#\s*include\s*"([^"]+)"', file.read_bytes(), re.MULTILINE):
            for folder in [file.parent, *folders]:
                candidate = folder / header.decode(errors="replace")
                if candidate.is_file():
                    queue.append(candidate.resolve())
                    break
    return found
