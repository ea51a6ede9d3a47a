"""Compilation of the C++ sources that ship with this package, each once, into a cache.

The key of a cached library is the hash of everything that decides its content: sources, the
headers they include by quotes, flags, the compiler's version, and (for ``-march=native``) the
features of this CPU.  A stale file can therefore never be taken, and nothing is ever deleted.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.resources
import os
import platform
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from hetero_tvm.errors import NativeBuildError
from hetero_tvm.host.cpu import cpu_features

CACHE_VARIABLE = "HETERO_TVM_CACHE"
DEFAULT_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-shared", "-pthread")
_COMPILERS = ("g++", "clang++", "c++")
_ERROR_LINES = 12


def cache_dir() -> Path:
    """Folder of compiled libraries: ``$HETERO_TVM_CACHE``, else the user's cache folder."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen).expanduser()
    import platformdirs

    return Path(platformdirs.user_cache_dir("hetero_tvm")) / "native"


def find_compiler() -> list[str]:
    """The C++ compiler as a command: ``$CXX`` (may carry options), else g++, clang++ or c++.

    Raises :class:`NativeBuildError` that names the command which installs one.
    """
    chosen = shlex.split(os.environ.get("CXX", ""))
    for command in [chosen] if chosen else [[name] for name in _COMPILERS]:
        if path := shutil.which(command[0]):
            return [path, *command[1:]]
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
            hint="reinstall the package: pip install --force-reinstall hetero-tvm",
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

    Several processes may ask at once: each writes a file of its own and renames it.

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
        folder.mkdir(exist_ok=True)
        fresh = folder / f".{os.getpid()}.gch"
        os.symlink(compiled, fresh)
        os.replace(fresh, link)
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
    target = cache_dir() / f"{name}-{_key(files, folders, flags, compiler)[:20]}{suffix}"
    if target.is_file():
        return target
    command = [*compiler, *map(str, files), *(f"-I{folder}" for folder in folders), *flags]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, scratch = tempfile.mkstemp(prefix=f".{name}-", suffix=suffix, dir=target.parent)
        os.close(handle)
    except OSError as error:
        raise NativeBuildError(
            f"cannot write to the cache folder {target.parent}: {error.strerror}",
            hint=f"name a writable folder: export {CACHE_VARIABLE}=/path/to/folder",
        ) from error
    try:
        _run([*command, "-o", scratch], name)
        os.chmod(scratch, 0o755)
        os.replace(scratch, target)
    finally:
        if os.path.exists(scratch):
            os.unlink(scratch)
    return target


def _run(command: list[str], name: str) -> None:
    result = subprocess.run(command, capture_output=True, text=True, errors="replace")
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
