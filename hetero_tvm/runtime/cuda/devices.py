"""GPUs of this machine, and TVM's CUDA runtime: found, or refused with a hint at what to install."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import re
from dataclasses import dataclass
from pathlib import Path

from hetero_tvm.errors import LibraryError
from hetero_tvm.runtime import tvm_runtime

CUDA = 2  # DLPack's device type
_CAPABILITY = 4  # attribute of TVM's device API: "8.0"
_NAME = 5
EAGER = "_eager"
"""Ending of an entry function's name: the same kernels, not as CUDA graphs."""
EMULATE_VARIABLE = "HETERO_TVM_CUDA_EMULATE"


@dataclass(frozen=True)
class Device:
    """A GPU of this machine: its number, name and compute capability (80 for 8.0)."""

    index: int
    name: str
    capability: int


@functools.lru_cache(maxsize=1)
def missing_driver() -> str | None:
    """Reason why the NVIDIA driver cannot be used; None when it can."""
    try:
        ctypes.CDLL("libcuda.so.1", ctypes.RTLD_GLOBAL)
    except OSError as error:
        return str(error)
    return None


def start() -> None:
    """Load TVM's CUDA runtime into this process.

    Raises
    ------
    LibraryError : no driver, or no CUDA run-time library; says what to install.
    """
    runtime = tvm_runtime.start()
    if runtime.ffi.get_global_func("device_api.cuda", allow_missing=True) is not None:
        return
    if (problem := missing_driver()) is not None:
        if emulating():
            start_standin()
            return
        raise LibraryError(
            "the library holds kernels for NVIDIA GPUs, and this machine has no NVIDIA driver",
            problems=[problem],
            hint="run it on a machine with an NVIDIA GPU (sudo apt-get install nvidia-driver-580, then "
            "nvidia-smi must list it), or build the model with --target cpu",
        )
    try:
        _load_cudart()
        ctypes.CDLL(str(Path(runtime.library._name).with_name("libtvm_runtime_cuda.so")))
    except OSError as error:
        raise LibraryError(
            f"TVM's CUDA runtime cannot be loaded: {error}", hint="pip install 'nvidia-cuda-runtime>=13,<14'"
        ) from error


def emulating() -> bool:
    """Whether the CPU emulation of a GPU is asked for (``$HETERO_TVM_CUDA_EMULATE``)."""
    return os.environ.get(EMULATE_VARIABLE, "0") not in ("", "0")


def start_standin() -> None:
    """Load TVM's CUDA runtime over stand-ins for the driver's two libraries.

    They have no device, unless the emulation is asked for; then it is one, on the CPU.

    Raises
    ------
    NativeBuildError : they are compiled on first use, and there is no C++ compiler.
    """
    for library in standins().values():
        ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
    ctypes.CDLL(str(Path(tvm_runtime.start().library._name).with_name("libtvm_runtime_cuda.so")))


def standins() -> dict[str, Path]:
    """The stand-ins by the names under which TVM's library asks for them, in the order of loading."""
    from hetero_tvm.host import native

    # The loader compares symbol versions, and TVM's library asks for these.
    versions = native.source_path("runtime/cuda/cpp/standin_versions.in")
    flags = {"libcuda.so.1": (), "libcudart.so.13": (f"-Wl,--version-script={versions}",)}
    return {
        soname: native.compile_shared(
            ["runtime/cuda/cpp/standin.cc"],
            flags=[f"-Wl,-soname,{soname}", *more],
            name=f"standin-{soname.split('.')[0]}",
        )
        for soname, more in flags.items()
    }


def _load_cudart() -> None:
    """Load CUDA's run-time library from NVIDIA's wheels, the toolkit, or the system."""
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(p) / "cu13" / "lib" for p in (spec.submodule_search_locations or [])] if spec else []
    folders += [
        Path(os.environ.get(name, "/usr/local/cuda")) / "lib64" for name in ("CUDA_HOME", "CUDA_PATH")
    ]
    for folder in folders:
        if (library := folder / "libcudart.so.13").exists():
            ctypes.CDLL(str(library), ctypes.RTLD_GLOBAL)
            return
    ctypes.CDLL("libcudart.so.13", ctypes.RTLD_GLOBAL)


def device_count() -> int:
    """Number of GPUs that the driver offers.  :class:`LibraryError`: there is no driver, or one too old."""
    start()
    try:
        return int(tvm_runtime.start().function("runtime.GetCudaDeviceCount")())
    except RuntimeError as error:  # the driver says "no device" with an error
        if "InsufficientDriver" in str(error):
            raise LibraryError(
                "the NVIDIA driver is too old for CUDA 13",
                problems=[str(error).strip().splitlines()[-1]],
                hint="sudo apt-get install nvidia-driver-580 (or later), then restart",
            ) from error
        return 0


def device(index: int = 0) -> Device:
    """The GPU of that number.

    Raises
    ------
    LibraryError : there is none.
    """
    count = device_count()
    runtime = tvm_runtime.start()
    if index >= count:
        raise LibraryError(
            "no NVIDIA GPU was found" if not count else f"there is no GPU {index}, only {count} in all",
            hint="nvidia-smi lists the GPUs that the driver sees; in a container start it with --gpus all; "
            "CUDA_VISIBLE_DEVICES may hide them",
        )
    attribute = runtime.function("runtime.GetDeviceAttr")
    text = str(attribute(CUDA, index, _CAPABILITY))
    return Device(index, str(attribute(CUDA, index, _NAME)), int(text.replace(".", "")))


def serves(arch: str, capability: int) -> bool:
    """Whether machine code for ``arch`` runs on a device of that compute capability.

    Code runs on later minor versions of its major version, code for ``sm_90a`` on 9.0 only.
    """
    built = int(re.sub(r"\D", "", arch))
    if arch.endswith("a"):
        return built == capability
    return built // 10 == capability // 10 and built <= capability


def best_of(archs: tuple[str, ...], capability: int) -> str | None:
    """The architecture among ``archs`` that fits a device best; None when none runs on it."""
    fitting = [arch for arch in archs if serves(arch, capability)]
    return max(fitting, key=lambda arch: (int(re.sub(r"\D", "", arch)), arch.endswith("a")), default=None)


def choose_arch(archs: tuple[str, ...], index: int = 0) -> str:
    """The architecture among ``archs`` whose machine code the GPU of that number runs.

    Raises
    ------
    LibraryError : no GPU, or one of an architecture that is not among them.
    """
    found = device(index)
    arch = best_of(archs, found.capability)
    if arch is None:
        raise LibraryError(
            f"the library holds machine code for {', '.join(archs)}; {found.name} is sm_{found.capability}",
            hint=f"build it again with --target cuda:{','.join([*archs, f'sm_{found.capability}'])}",
        )
    return arch
