"""Exported files: one ``.so`` with constants, manifest and checksum, and a readable copy of the manifest."""

from __future__ import annotations

import os
from contextlib import nullcontext
from pathlib import Path

from hetero_tvm.codegen import thread_pool
from hetero_tvm.compile.linking import failure, link
from hetero_tvm.compile.segment import SEGMENT_FLAGS, append_segment
from hetero_tvm.compile.weights import Weights
from hetero_tvm.errors import HeteroTVMError, expect
from hetero_tvm.host import native
from hetero_tvm.host.files import alone, sync
from hetero_tvm.host.scratch import scratch_folder, temporary_folder
from hetero_tvm.host.tvm import Executable
from hetero_tvm.runtime import checksum
from hetero_tvm.runtime.manifest import Manifest, embed_source, sidecar_path, write_sidecar


def export_library(
    path: str | os.PathLike[str], executable: Executable, weights: Weights | None, manifest: Manifest
) -> Path:
    """Write one ``.so`` with the manifest embedded, and ``<stem>.manifest.json`` beside it.

    ``path`` is the file, or a folder (which gets ``model.so``).  The file appears whole or not at all.

    Raises
    ------
    BuildError : the linker failed, or the folder cannot be written.
    """
    expect(path, (str, os.PathLike), "export takes the path of a folder, or of a file that ends in .so")
    path = Path(path)
    if path.suffix != ".so":
        path = path / "model.so"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with (
            scratch_folder(path.parent, ".export-") as folder,
            # Not in the user's folder: the assembler has no way to write a quote in a name.
            temporary_folder("hetero_tvm-export-") as scratch,
        ):
            source = scratch / "manifest.cc"
            source.write_text(embed_source(manifest), encoding="utf-8")
            fresh = folder / path.name
            _link(executable, weights, fresh, source)
            checksum.seal(fresh)
            sync(fresh)
            sidecar = write_sidecar(fresh, manifest)
            # Never the sidecar of another library beside this one: of an export at the same time, or when
            # the process is killed in between.
            with alone(path.parent):
                sidecar_path(path).unlink(missing_ok=True)
                os.replace(fresh, path)
                os.replace(sidecar, sidecar_path(path))
    except HeteroTVMError:
        raise
    except Exception as error:
        raise failure(path, error) from error
    return path


def _link(executable: Executable, weights: Weights | None, path: Path, source: Path) -> None:
    """Write the library with its constants; ``source`` is the C++ source of the manifest."""
    pool, options = thread_pool.link_parts()
    # Sums of the constants that are computed at load round as they do here.
    sources, options = [source, pool], ["-O2", "-ffp-contract=off", *options]
    if weights is not None:
        sources.append(native.source_path("runtime/cpp/constants.cc"))
        options += SEGMENT_FLAGS
    with weights.exported() if weights is not None else nullcontext():
        link(executable, path, sources, options)
    if weights is not None:
        size, pieces = weights.segment()
        append_segment(path, size, pieces)
