"""Inputs that the user gives for a check, in place of sampled ones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from hetero_tvm.errors import InputError, UsageError
from hetero_tvm.host.files import odd_kind
from hetero_tvm.runtime.arrays import numpy_dtype
from hetero_tvm.runtime.signature import Signature

_HINT = "numpy.savez('inputs.npz', NAME=array, ...)"
_BEGINS = (b"PK", b"\x93NUMPY")
"""Begins of an ``.npz`` file, which is a ZIP file, and of an ``.npy`` file."""


def read_inputs(path: Path) -> dict[str, np.ndarray]:
    """Arrays of an ``.npz`` file by name (``numpy.savez(path, input_ids=ids, ...)``).

    Raises
    ------
    UsageError : the file cannot be read, is no ``.npz``, or holds pickled objects, which are never read.
    """
    if (kind := odd_kind(path)) is not None:
        raise UsageError(f"{path} is {kind}, not an .npz file", hint=_HINT)
    try:
        with open(path, "rb") as stream:
            begin = stream.read(40)
        if not begin.startswith(_BEGINS):  # NumPy would take it for a pickle
            raise ValueError(f"no .npz file, it begins with {begin.decode(errors='replace')!r}")
        file = np.load(path, allow_pickle=False)
        if isinstance(file, np.ndarray):
            raise ValueError("it is one array without a name (.npy)")
        with file:
            return {name: file[name] for name in file.files}
    except FileNotFoundError as error:
        raise UsageError(f"{path} cannot be read as inputs: there is no such file", hint=_HINT) from error
    except Exception as error:  # NumPy and zipfile raise whatever the broken part happens to cause
        raise UsageError(
            f"{path} cannot be read as inputs: {error or type(error).__name__}",
            hint=_HINT,
        ) from error


def checked_inputs(signature: Signature, arrays: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays, one per input of a model, once names, shapes and dtypes have been found right.

    Raises
    ------
    InputError : lists everything that is wrong.
    """
    if not isinstance(arrays, Mapping):
        raise InputError(
            f"inputs are arrays by name, as in {{'x': array}}, not {type(arrays).__name__}",
            hint="pass a dictionary: {name: array}",
        )
    names = [spec.name for spec in signature.inputs]
    problems = [f"{name}: the model has no such input" for name in arrays if name not in names]
    found: dict[str, np.ndarray] = {}
    for spec in signature.inputs:
        if spec.name not in arrays:
            problems.append(f"{spec.name}: missing")
            continue
        try:
            array = found[spec.name] = np.asarray(arrays[spec.name])
        except Exception as error:  # rows of different lengths, tensors that NumPy cannot read
            problems.append(f"{spec.name}: no array: {error}")
            continue
        if not _fits(array.shape, spec.shape) or array.dtype != numpy_dtype(spec.dtype):
            wanted = f"{spec.dtype} {'x'.join(map(str, spec.shape)) or 'scalar'}"
            problems.append(
                f"{spec.name}: {array.dtype} {'x'.join(map(str, array.shape)) or 'scalar'}, not {wanted}"
            )
    if not problems:
        problems = signature.misfits({name: array.shape for name, array in found.items()})
    if problems:
        ends = ", ".join(map(str, signature.inputs))
        sizes = ", ".join(map(str, signature.symbols))
        hint = f"the model takes ({ends}){f' for {sizes}' if sizes else ''}"
        raise InputError("these inputs do not fit the model", problems=problems, hint=hint)
    return found


def _fits(shape: tuple[int, ...], wanted: tuple[int | str, ...]) -> bool:
    """Whether an array of ``shape`` fits, whatever the symbols are."""
    return len(shape) == len(wanted) and all(
        isinstance(want, str) or want == size for want, size in zip(wanted, shape, strict=True)
    )
