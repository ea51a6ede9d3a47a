"""Reading of ``.pt2`` files: programs saved by ``torch.export.save``.  Every defect is a ModelError."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import logging
import re
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from hetero_tvm.errors import ModelError, UsageError
from hetero_tvm.frontend.foreign import HEAD, foreign
from hetero_tvm.frontend.onnx.load import no_such_file
from hetero_tvm.frontend.torch.operators import quantizers
from hetero_tvm.frontend.torch.records import mapped_records
from hetero_tvm.frontend.torch.untrusted import UNREADABLE, only_tensors, refuse_archive, refuse_code
from hetero_tvm.host import mapped
from hetero_tvm.host.files import odd_kind
from hetero_tvm.host.install import extra_command

if TYPE_CHECKING:
    from torch.export import ExportedProgram

#: Packages whose result types may be imported because a file names them.
_TRUSTED = frozenset({"transformers"})
_CONTAINER = re.compile(r'\\"type\\": \\"([A-Za-z_][\w.]*)\\"')
_SAVE = "torch.export.save(torch.export.export(model.eval(), example_inputs), 'model.pt2')"


def require(module: str) -> ModuleType:
    """Import PyTorch or a part of its exporter.

    Raises
    ------
    UsageError : it is not installed, or cannot be imported.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.partition(".")[0]
        raise UsageError(
            f"Reading PyTorch programs needs the package {package}, which cannot be imported: {error}.",
            hint=f"{extra_command('torch')}    (or export the model to ONNX where PyTorch is installed)",
        ) from error


def load_program(path: Path, trust: bool = False) -> ExportedProgram:
    """Load the ``torch.export.ExportedProgram`` in a file; no code of the file runs unless it is trusted.

    Raises
    ------
    ModelError : the file is missing, broken, of another kind (a checkpoint, TorchScript), or uses
        container types of packages that are not here, or can only be read by running it and is not trusted.
    UsageError : PyTorch is not installed.
    """
    if not path.exists():
        raise no_such_file(path, "*.pt2")
    if (kind := odd_kind(path)) is not None:
        raise ModelError(f"{path} is {kind}, not a .pt2 file.", hint=f"Save a program with {_SAVE}.")
    refuse_archive(path)
    if not is_program(path):
        with path.open("rb") as file:
            error = foreign(path, file.read(HEAD), "a program saved by torch.export")
        raise error or ModelError(
            f"{path} is not a program saved by torch.export (or it is truncated).",
            hint=f"Checkpoints, TorchScript and AOTInductor packages are none; save one with {_SAVE}.",
        )
    torch = require("torch")
    if not trust:
        refuse_code(path)
    _import_containers(path)
    careful = contextlib.nullcontext() if trust else only_tensors(torch, path)
    with warnings.catch_warnings(), _log_of("torch.export") as messages:
        warnings.simplefilter("ignore")
        try:
            with careful, mapped_records(torch, path):
                program = torch.export.load(str(path))
            _to_files(torch, program)
            _without_ranges_of_expressions(torch, program)
            return program
        except ModelError:
            raise
        except Exception as error:  # its reader raises whatever the broken part happens to cause
            raise _unreadable(path, messages, error) from error


def _to_files(torch: ModuleType, program: ExportedProgram) -> None:
    """Move the large tensors of a program to mapped files, those that share memory together."""
    moved: dict[tuple[int, int], Any] = {}
    for value in [*program.state_dict.values(), *program.constants.values()]:
        if not isinstance(value, torch.Tensor) or value.device.type != "cpu" or not value.is_contiguous():
            continue
        if value.layout is not torch.strided or value.nbytes < mapped.LARGE:
            continue
        flat = value.detach().reshape(-1).view(torch.uint8)
        key = flat.data_ptr(), flat.numel()
        if key not in moved:
            moved[key] = torch.from_numpy(mapped.mapped(flat.numpy()))
        value.data = moved[key].view(value.dtype).reshape(value.shape)
    mapped.release()


def _without_ranges_of_expressions(torch: ModuleType, program: ExportedProgram) -> None:
    """Drop ranges of what is no symbol from the sizes of a program.

    PyTorch's reader notes one for a dimension that is computed (8 h), and its own decomposition then fails.
    """
    values = (node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder")
    for value in values:
        if not isinstance(value, torch.Tensor):
            continue
        shapes = getattr(getattr(value, "fake_mode", None), "shape_env", None)
        ranges = getattr(shapes, "var_to_range", {})
        for expression in [one for one in ranges if not one.is_Symbol]:
            del ranges[expression]


def is_program(path: Path) -> bool:
    """Whether a file is an archive with an exported program in it (of any suffix)."""
    return _definition(path) is not None


def _definition(path: Path) -> bytes | None:
    """JSON text of the program in an archive; None when there is none."""
    try:
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if re.search(r"(^|/)models/[^/]+\.json$|(^|/)serialized_exported_program\.json$", name):
                    return archive.read(name)
    except UNREADABLE:
        pass
    return None


def _import_containers(path: Path) -> None:
    """Import the modules that define a program's result types (transformers' ModelOutput) and quantisers.

    PyTorch reads a file only when these are registered, which importing them does.
    """
    text = (_definition(path) or b"").decode("utf-8", "replace")
    if "quantized_decomposed" in text:
        with contextlib.suppress(ImportError):
            importlib.import_module(quantizers.MODULE)
    for name in sorted(set(_CONTAINER.findall(text))):
        package = name.partition(".")[0]
        if package in _TRUSTED and importlib.util.find_spec(package) is not None:
            with contextlib.suppress(Exception):  # PyTorch then names the type that it misses
                importlib.import_module(name.rpartition(".")[0])


def _unreadable(path: Path, messages: list[str], error: Exception) -> ModelError:
    """Error for a file that PyTorch cannot read, with the reason that it logged or raised."""
    lines = [line.strip() for text in (*messages, str(error)) for line in text.splitlines() if line.strip()]
    missing = next((line for line in lines if "in pytree is not registered" in line), None)
    if missing is not None:
        return ModelError(
            f"{path} returns a container type that is not known here: {missing}",
            hint="Install or import its package, or export a module that returns plain tensors.",
        )
    causes = [line for line in lines if re.match(r"\w*(Error|Exception)\b", line)]
    reason = (causes or lines or [type(error).__name__])[-1]
    return ModelError(
        f"PyTorch cannot read {path}: {reason[:300]}",
        hint="The file may be damaged, or written by a newer PyTorch; save the program with this one.",
    )


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep PyTorch's exporter, which logs and warns a lot, from printing below errors."""
    before = logging.root.manager.disable
    logging.disable(max(before, logging.WARNING))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


@contextlib.contextmanager
def _log_of(name: str) -> Iterator[list[str]]:
    """Collect what a logger would print."""
    messages: list[str] = []

    class Keep(logging.Filter):
        def filter(self, record: logging.LogRecord) -> bool:
            error = f"\n{record.exc_info[1]!r}" if record.exc_info else ""
            messages.append(record.getMessage() + error)
            return False

    keep, logger = Keep(), logging.getLogger(name)
    logger.addFilter(keep)
    try:
        yield messages
    finally:
        logger.removeFilter(keep)
