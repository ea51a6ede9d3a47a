"""External code generator ``relax.ext.hnpu``: compiled regions as a module that TVM links.

The module is one object file: the regions' command streams and constants, the part that runs them
through the driver interface, and the simulator that serves when ``$HNPU_DRIVER`` names no driver.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hetero_tvm.errors import NativeBuildError
from hetero_tvm.host import native
from hetero_tvm.host.scratch import temporary_folder
from hetero_tvm.host.tvm import tvm, tvm_ffi
from hetero_tvm.machines.npu.spec import NPUSpec
from hetero_tvm.targets.npu.device import simulator
from hetero_tvm.targets.npu.regions.region import CompiledRegion
from hetero_tvm.targets.npu.regions.stored_regions import load

CODEGEN = "hnpu"
"""Name of the code generator, as in ``relax.ext.hnpu``."""
_RUN = "targets/npu/cpp/npu_region.cc"
_FLAGS = ("-O2", "-fvisibility=hidden")


def link(regions: Sequence[CompiledRegion], spec: NPUSpec) -> Any:
    """Static library module with one TVM function per region, of the same name."""
    with temporary_folder("hetero_tvm-npu-") as folder:
        source = folder / "regions.cc"
        source.write_text(_source(regions, spec, folder), encoding="utf-8")
        entries, merged = folder / "regions.o", folder / "hnpu.o"
        includes = [f"-I{native.source_path(_RUN).parent}", *(f"-I{path}" for path in _headers())]
        _run(["-std=c++17", "-fPIC", *_FLAGS, "-c", *includes, str(source), "-o", str(entries)])
        # What is the same in every library is compiled once and cached.
        run = native.compile_object([_RUN], flags=_FLAGS, include=_headers(), name="hnpu-region")
        _run(["-r", "-nostdlib", "-o", *map(str, (merged, entries, run, simulator.object_file()))])
        return tvm.runtime.load_static_library(str(merged), [region.name for region in regions])


def _source(regions: Sequence[CompiledRegion], spec: NPUSpec, folder: Path) -> str:
    """C++ source with the data (by reference to files beside it) and one entry per region."""
    parts = ['#include "npu_region.h"']
    rows, entries = [], []
    for n, region in enumerate(regions):
        for what, data in (("stream", region.stream), ("constants", region.constants)):
            path = folder / f"{what}{n}.bin"
            path.write_bytes(data)
            parts.append(_embedded(f"hetero_npu_{what}{n}", path))
        sizes = ", ".join(map(str, (*region.inputs, *region.outputs)))
        parts.append(f"static const uint64_t bytes{n}[] = {{{sizes}}};")
        rows.append(
            f'{{"{region.name}", hetero_npu_stream{n}, {len(region.stream)}ull, hetero_npu_constants{n}, '
            f"{len(region.constants)}ull, {max(region.workspace, 64)}ull, {len(region.inputs)}, "
            f"{len(region.outputs)}, bytes{n}}}"
        )
        entries.append(
            f'extern "C" __attribute__((visibility("default"))) int32_t __tvm_ffi_{region.name}('
            "void*, const TVMFFIAny* args, int32_t num_args, TVMFFIAny* result) {\n"
            f"  return hetero_npu_call({n}, args, num_args, result);\n}}"
        )
    config = "\n".join(f'"{line}\\n"' for line in spec.to_config().splitlines())
    parts.append(f"const hetero_npu_region hetero_npu_regions[] = {{{', '.join(rows)}}};")
    parts.append(f"const uint32_t hetero_npu_region_count = {len(regions)};")
    parts.append(f"const char hetero_npu_config[] =\n{config};")
    return "\n".join([*parts, *entries]) + "\n"


def _embedded(symbol: str, path: Path) -> str:
    return (
        f'__asm__(".section .rodata\\n.balign 64\\n.hidden {symbol}\\n.global {symbol}\\n{symbol}:\\n'
        f'.incbin \\"{path}\\"\\n.byte 0\\n.previous\\n");\n'
        f'extern "C" {{ extern const unsigned char {symbol}[] __attribute__((visibility("hidden"))); }}'
    )


def _headers() -> list[str]:
    from hetero_tvm.host.tvm import libinfo

    found = [libinfo.find_include_path()]
    if hasattr(libinfo, "find_dlpack_include_path"):
        found.append(libinfo.find_dlpack_include_path())
    return [str(path) for path in found]


def _run(arguments: list[str]) -> None:
    command = [*native.find_compiler(), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if result.returncode:
        raise NativeBuildError(
            "compiling the NPU part of the library failed",
            problems=result.stderr.strip().splitlines()[:12],
            hint=" ".join(command),
        )


@tvm_ffi.register_global_func(f"relax.ext.{CODEGEN}", override=True)
def _codegen(functions: Sequence[Any], options: Any, constant_names: Any) -> list[Any]:
    """The library of the functions that carry our codegen attribute; ``relax.transform.RunCodegen`` calls it.
    ``options["folder"]`` has their compiled regions."""
    regions, spec = load(Path(str(options["folder"])))
    return [link([regions[str(function.attrs["global_symbol"])] for function in functions], spec)]
