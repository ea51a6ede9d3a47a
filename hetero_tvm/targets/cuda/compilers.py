"""Compilers of CUDA C++: nvcc, or NVRTC from the wheels, whichever is there.

Neither needs a GPU or a driver.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

from hetero_tvm.errors import TargetError
from hetero_tvm.host.scratch import temporary_folder
from hetero_tvm.runtime.cuda import devices as cuda_runtime
from hetero_tvm.targets.cuda.emulator import Emulator
from hetero_tvm.targets.cuda.toolchain import Toolchain

COMPILER_VARIABLE = "HETERO_TVM_CUDA_COMPILER"
WHEELS = "nvidia-cuda-nvrtc nvidia-cuda-runtime nvidia-cuda-crt nvidia-cuda-cccl"


class Nvcc(Toolchain):
    """The compiler of the CUDA toolkit."""

    name = "nvcc"

    def __init__(self, path: str):
        self.path = path

    @functools.cached_property
    def version(self) -> str:
        return subprocess.run([self.path, "--version"], capture_output=True, text=True).stdout.strip()

    def _compile(self, source: str, arch: str, kind: str) -> dict[str, bytes]:
        with temporary_folder("hetero_tvm-cuda-") as folder:
            file, out = folder / "kernels.cu", folder / "out"
            file.write_text(source, encoding="utf-8")
            command = [self.path, f"-{kind}", f"-arch={arch}", "-O3", "-std=c++17", "-diag-suppress=177,550"]
            if self.keeps_ptx:
                command += ["--keep", "--keep-dir", str(folder)]
            done = subprocess.run([*command, str(file), "-o", str(out)], capture_output=True, text=True)
            if done.returncode:
                raise _refused(self.name, arch, done.stderr or done.stdout)
            results = {kind: out.read_bytes()}
            if (kept := file.with_suffix(".ptx")).is_file():
                results.setdefault("ptx", kept.read_bytes())
            return results


class Nvrtc(Toolchain):
    """The run-time compiler as a library: no toolkit, no host compiler."""

    name = "nvrtc"

    def __init__(self, library: ctypes.CDLL, include: list[Path]):
        self._library = library
        self._include = include

    @functools.cached_property
    def version(self) -> str:
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
        return f"{major.value}.{minor.value}"

    def _compile(self, source: str, arch: str, kind: str) -> dict[str, bytes]:
        lib, program = self._library, ctypes.c_void_p()
        target = arch if kind == "cubin" else arch.replace("sm_", "compute_")
        options = [
            f"--gpu-architecture={target}",
            "--std=c++17",
            "-default-device",
            "--diag-suppress=177,550",
        ]
        options += [f"-I{folder}" for folder in self._include]
        text = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        lib.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernels.cu", 0, None, None)
        try:
            if lib.nvrtcCompileProgram(program, len(options), text):
                raise _refused(self.name, arch, self._fetch("ProgramLog", program).decode(errors="replace"))
            kinds = {kind, "ptx"} if self.keeps_ptx else {kind}
            return {one: self._fetch(one.upper(), program) for one in kinds}
        finally:
            lib.nvrtcDestroyProgram(ctypes.byref(program))

    def _fetch(self, what: str, program: ctypes.c_void_p) -> bytes:
        size = ctypes.c_size_t()
        getattr(self._library, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        getattr(self._library, f"nvrtcGet{what}")(program, buffer)
        return buffer.raw if what == "CUBIN" else buffer.raw.rstrip(b"\0")


def _refused(compiler: str, arch: str, log: str) -> TargetError:
    """The error for source that a compiler refused, with the errors of its log."""
    lines = [line.strip() for line in log.strip().splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower() or "fatal" in line.lower()] or lines
    return TargetError(f"{compiler} does not compile the kernels for {arch}", problems=errors[:8])


def find() -> Toolchain:
    """The compiler to use: ``$HETERO_TVM_CUDA_COMPILER`` (nvcc, nvrtc, or a path), else what is there.

    Raises
    ------
    TargetError : there is none; names the command that installs one.
    """
    if cuda_runtime.emulating():
        return Emulator()
    chosen = os.environ.get(COMPILER_VARIABLE, "")
    if chosen not in ("", "nvcc", "nvrtc"):
        if path := shutil.which(chosen):
            return Nvcc(path)
        raise TargetError(f"{COMPILER_VARIABLE}={chosen}: there is no such program")
    compilers = [find_nvcc] if chosen == "nvcc" else [find_nvrtc] if chosen else [find_nvcc, find_nvrtc]
    for finder in compilers:
        if (found := finder()) is not None:
            return found
    raise TargetError(
        f"no CUDA compiler: {chosen or 'neither nvcc nor NVRTC'} was found",
        hint=f"pip install {WHEELS}    (no GPU is needed to build)",
    )


@functools.lru_cache(maxsize=1)
def find_nvcc() -> Nvcc | None:
    """The compiler of a CUDA toolkit; None without one."""
    homes = [os.environ.get(name) for name in ("CUDA_HOME", "CUDA_PATH")]
    for home in [*filter(None, homes), "/usr/local/cuda"]:
        if (path := Path(home) / "bin" / "nvcc").is_file():
            return Nvcc(str(path))
    path = shutil.which("nvcc")
    return Nvcc(path) if path else None


@functools.lru_cache(maxsize=1)
def find_nvrtc() -> Nvrtc | None:
    """NVRTC from NVIDIA's wheels, with the headers that kernels need; None without them."""
    folders = wheel_folders()
    for folder in folders:
        for library in sorted((folder / "lib").glob("libnvrtc.so.*")):
            include = [
                f / name for f in folders for name in ("include", "include/cccl") if (f / name).is_dir()
            ]
            if not any((path / "cuda_fp16.h").is_file() for path in include):
                continue
            return Nvrtc(ctypes.CDLL(str(library)), include)
    return None


def wheel_folders() -> list[Path]:
    """Folders of NVIDIA's wheels (``nvidia/cu13``), in the order of the import path."""
    spec = importlib.util.find_spec("nvidia")
    places = list(spec.submodule_search_locations or []) if spec else []
    return [folder for place in places for folder in sorted(Path(place).glob("cu1[3-9]"), reverse=True)]
