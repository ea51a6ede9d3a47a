"""Graphs with some arguments bound, as exported programs, and what identifies such a program."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram

import hetero_tvm
from hetero_tvm.errors import ModelError
from hetero_tvm.frontend.torch.load import quiet
from hetero_tvm.records.store import shipped_logs, user_logs
from hetero_tvm.targets.registry import parse_target
from hetero_tvm.torch.examine import first_line
from hetero_tvm.torch.options import Options
from hetero_tvm.version import VERSION

_PACKAGES = ("torch", "apache-tvm", "apache-tvm-ffi", "onnxscript", "onnx")


class _Bound(torch.nn.Module):
    """A graph as a function of its free arguments."""

    def __init__(self, gm: torch.fx.GraphModule, bound: Mapping[int, Any]):
        super().__init__()
        self.gm = gm
        self._values: dict[int, Any] = {}
        self._names: dict[int, str] = {}
        nodes = gm.graph.find_nodes(op="placeholder")
        self._count = len(nodes)
        for index, value in bound.items():
            if isinstance(value, torch.Tensor):
                self._names[index] = f"p{index}_{re.sub(r'[^0-9A-Za-z_]', '_', str(nodes[index].target))}"
                self.register_buffer(self._names[index], value.detach())
            else:
                self._values[index] = value

    def forward(self, *free: torch.Tensor) -> Any:
        given = iter(free)
        arguments = []
        for index in range(self._count):
            if index in self._values:
                arguments.append(self._values[index])
            elif index in self._names:
                arguments.append(getattr(self, self._names[index]))
            else:
                arguments.append(next(given))
        return self.gm(*arguments)


def exported(gm: torch.fx.GraphModule, arguments: Sequence[Any], bound: Mapping[int, Any]) -> ExportedProgram:
    """Export a graph with fixed shapes.

    Parameters
    ----------
    arguments : tensors like those that the graph will get, and numbers, in the order of its placeholders.
    bound : values of arguments that become part of the program, by number: parameters (which share
        their memory with it) and Python numbers.

    Raises
    ------
    ModelError : PyTorch cannot trace it.
    """
    free = tuple(
        torch.zeros(value.shape, dtype=value.dtype)
        for index, value in enumerate(arguments)
        if index not in bound
    )
    try:
        with torch.inference_mode(False), torch.no_grad(), quiet():
            return torch.export.export(_Bound(gm, bound), free, strict=False)
    except Exception as error:  # tracing raises whatever the graph causes
        raise ModelError(f"PyTorch cannot export the graph. {first_line(error)}") from error


def key_of(program: ExportedProgram, options: Options) -> str:
    """Digits that stand for a program, its weights, and everything that decides what is made of it."""
    digest = hashlib.sha256()

    def add(text: str) -> None:
        digest.update(text.encode())
        digest.update(b"\0")

    add(re.sub(r"#.*", "", program.graph_module.print_readable(print_output=False)))
    add(str(program.graph_signature))
    for stored in (program.state_dict, program.constants):
        for name, value in stored.items():
            add(name)
            if isinstance(value, torch.Tensor):
                add(f"{value.dtype} {tuple(value.shape)} {value.layout}")
                digest.update(_content(value))
    add(json.dumps(parse_target(options.target).describe(), sort_keys=True, default=str))
    add(f"{options.precision} {options.check}")
    add(json.dumps([VERSION, *((name, _version(name)) for name in _PACKAGES)]))
    for path in (*_sources(), *_records(options)):
        status = path.stat()
        add(f"{path} {status.st_size} {status.st_mtime_ns}")
    return digest.hexdigest()


def _content(tensor: torch.Tensor) -> bytes:
    """Digest of a tensor's bytes, in the order of its elements."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    data = flat.view(torch.uint8) if flat.numel() else flat.new_zeros(0, dtype=torch.uint8)
    return hashlib.sha256(data.numpy()).digest()


def _version(name: str) -> str:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _sources() -> list[Path]:
    """Files of this package: what another state of them has compiled is not taken."""
    root = Path(hetero_tvm.__path__[0])
    return sorted(path for path in root.rglob("*") if path.suffix in (".py", ".cc", ".h", ".json"))


def _records(options: Options) -> list[Path]:
    """Files of tuning records, which choose kernels."""
    folders = [Path(options.logs) if options.logs is not None else user_logs(), shipped_logs()]
    return sorted(p for folder in folders if folder and folder.is_dir() for p in folder.glob("*.jsonl*"))
