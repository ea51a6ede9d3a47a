"""Linking of a compiled model: to a library that is exported, or to one that this process runs."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from hetero_tvm.errors import BuildError, HeteroTVMError, shortened
from hetero_tvm.host import native
from hetero_tvm.host.files import is_full
from hetero_tvm.host.scratch import temporary_folder
from hetero_tvm.host.side_by_side import side_by_side
from hetero_tvm.host.tvm import Executable, relax, tvm, tvm_ffi
from hetero_tvm.runtime.quiet import quiet_fd2

_OBJECTS = 16
"""Object files that one executable may have."""

_PREFIX = "__tvm_ffi_"
"""Prefix of TVM's symbols of functions."""

_LEAST_LINKED = 2
"""Parts of an executable that is linked to be run: LLVM makes less code again faster than a linker starts."""

_object_code: WeakKeyDictionary[Executable, list[bytes]] = WeakKeyDictionary()
"""Content of the object files of an executable's parts: machine code is made once, to run and to export."""

_importing = threading.Lock()
"""Held by who reads the imports of an executable, or has others there for a while."""


def link(
    executable: Executable, path: Path, sources: Sequence[Path] = (), options: Sequence[str] = ()
) -> None:
    """Link an executable, and C++ sources, to a library.

    Raises
    ------
    BuildError : there is no compiler, no room on a disk, or the linker failed.
    """
    native.find_compiler()
    try:
        with object_folder() as folder, quiet_fd2():
            compile_to, addons = _compiler_within(folder), [str(source) for source in sources]
            with _importing:
                parts = executable.mod._collect_dso_modules()
                packed = _what_is_imported(executable, parts, folder) if _all_of_llvm(parts) else None
            if packed is not None:
                files = [*_objects(executable, parts, folder), packed]
                compile_to(str(path), addons + files, list(options))
            else:
                executable.export_library(
                    str(path),
                    addons=addons,
                    options=list(options),
                    workspace_dir=folder,
                    fcompile=compile_to,
                )
    except HeteroTVMError:
        raise
    except Exception as error:  # TVM raises many kinds
        raise failure(path, error) from error


def _all_of_llvm(parts: Sequence[Any]) -> bool:
    return bool(parts) and all(part.kind == "llvm" for part in parts)


def _objects(executable: Executable, parts: Sequence[Any], folder: str) -> list[str]:
    """Object files of an executable's parts; their code is made side by side, the first time."""
    files = [str(Path(folder) / f"lib{number}.o") for number in range(len(parts))]
    made = _object_code.get(executable)
    if made is None:
        side_by_side(lambda one: one[0].write_to_file(one[1]), zip(parts, files, strict=True))
        _object_code[executable] = [Path(file).read_bytes() for file in files]
    else:
        for file, content in zip(files, made, strict=True):
            Path(file).write_bytes(content)
    return files


def _what_is_imported(executable: Executable, parts: Sequence[Any], folder: str) -> str:
    """Object file of what TVM reads when it loads an executable: its instructions and constants."""
    target = parts[0].get_function("_get_target_string")()
    packed = tvm.runtime._ffi_api.ModulePackImportsToLLVM(executable.mod, False, target, "")
    file = str(Path(folder) / "devc.o")
    packed.write_to_file(file)
    return file


def _compiler_within(folder: str) -> Callable[..., None]:
    """TVM's way to make a shared library, with the compiler's own temporary files in ``folder``.

    They would stay where temporary files lie when it is killed; this folder is swept.
    """

    def run(output: str, objects: Sequence[str], options: Sequence[str] | None = None) -> None:
        command = [*native.find_compiler(), "-shared", "-fPIC", "-o", output, *(options or ()), *objects]
        environment = {**os.environ, "TMPDIR": folder}
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", env=environment)
        if done.returncode:
            raise RuntimeError(done.stderr or done.stdout or f"exit status {done.returncode}")

    # Without it TVM writes what a library imports in C, which is slow to compile.
    run.get_target_triple = tvm.support.cc.create_shared.get_target_triple  # type: ignore[attr-defined]
    return run


def machine(executable: Executable, devices: Sequence[Any]) -> Any:
    """Virtual machine of an executable in this process.

    Raises
    ------
    BuildError : as for :func:`link`, where parts must be linked before they can be run.
    """
    if _has_objects(executable):
        with temporary_folder("hetero_tvm-link-") as folder:
            path = Path(folder) / "model.so"
            link(executable, path)
            with quiet_fd2():
                return relax.VirtualMachine(tvm.runtime.load_module(str(path)), list(devices))
    with _importing:
        parts = list(executable.mod.imports)
    if len(parts) >= _LEAST_LINKED and _all_of_llvm(parts) and not any(part.imports for part in parts):
        # Where there is no compiler, or what it makes cannot be loaded (a folder mounted noexec), LLVM does
        # both, here and without a file.
        with contextlib.suppress(HeteroTVMError, OSError, RuntimeError):
            code = _loaded(executable, parts)
            with _instead_of_parts(executable, parts, code), quiet_fd2():
                return relax.VirtualMachine(executable, list(devices))
    side_by_side(_make_machine_code, [part for part in _imported(executable) if part.kind == "llvm"])
    with quiet_fd2():
        return relax.VirtualMachine(executable, list(devices))


def _loaded(executable: Executable, parts: Sequence[Any]) -> Any:
    """Module of the kernels of an executable's parts: the machine code that an export links, too."""
    native.find_compiler()
    with temporary_folder("hetero_tvm-link-") as folder, object_folder() as objects, quiet_fd2():
        path = str(Path(folder) / "kernels.so")
        _compiler_within(objects)(path, _objects(executable, parts, objects))
        return tvm_ffi.load_module(path, keep_module_alive=False)


@contextlib.contextmanager
def _instead_of_parts(executable: Executable, parts: Sequence[Any], code: Any) -> Iterator[None]:
    """Have an executable import ``code`` alone: a virtual machine looks up its kernels when it is made."""
    with _importing:
        executable.mod.clear_imports()
        executable.mod.import_module(code)
        try:
            yield
        finally:
            executable.mod.clear_imports()
            for part in parts:
                executable.mod.import_module(part)


def failure(path: Path, error: Exception) -> BuildError:
    """Error of ours for one of the linker, or of the disk."""
    if is_full(error):
        scratch = tempfile.gettempdir()
        return BuildError(
            f"no room on the disk for {path} (or for files in {scratch} while it is linked)",
            hint="free some space, give another --out, or name another folder with TMPDIR",
        )
    if isinstance(error, (FileExistsError, NotADirectoryError)):
        there = next((str(one) for one in path.parents if one.is_file()), error)
        return BuildError(
            f"cannot write {path}: {there} is a file, and a folder is wanted there",
            hint="name another path: --out, or export(path) in Python",
        )
    if isinstance(error, OSError):
        return BuildError(
            f"cannot write {path}: {error}", hint="name another path: --out, or export(path) in Python"
        )
    lines = [line for line in str(error).splitlines() if line.strip()]
    hint = "a C++ compiler (g++ or clang++) must be installed and work; CXX names another one"
    if re.search(r"\b(Killed|signal 9|SIGKILL)\b", str(error)):
        hint = "the system killed the linker, most often for want of memory: end what else takes it"
    return BuildError(
        f"linking {path.name} failed", problems=shortened([line.strip() for line in lines]), hint=hint
    )


@contextlib.contextmanager
def object_folder() -> Iterator[str]:
    """Folder for object files, which are in memory: LLVM ends the process when a disk is full."""
    files = []
    try:
        with temporary_folder("hetero_tvm-link-") as folder:
            for name in ("devc.o", *(f"lib{n}.o" for n in range(_OBJECTS))):
                files.append(os.memfd_create(name, os.MFD_CLOEXEC))
                # By this process' number: the compiler reads them.
                os.symlink(f"/proc/{os.getpid()}/fd/{files[-1]}", folder / name)
            yield str(folder)
    finally:
        for file in files:
            os.close(file)


def _has_objects(executable: Executable) -> bool:
    """Whether it has parts that must be linked before they can be run."""
    return any(not part.is_runnable() for part in _imported(executable))


def _imported(executable: Executable) -> list[Any]:
    """Modules that an executable has, parts of parts as well."""
    modules, seen = list(executable.mod.imports), []
    while modules:
        seen.append(modules.pop())
        modules += list(seen[-1].imports)
    return seen


def _make_machine_code(part: Any) -> None:
    """Have LLVM make a part's machine code, which it does when a function is asked for."""
    names = part.get_function("get_func_names")()
    name = next((name for name in map(str, names) if name.startswith(_PREFIX)), None)
    if name is not None:
        part.get_function(name.removeprefix(_PREFIX))
