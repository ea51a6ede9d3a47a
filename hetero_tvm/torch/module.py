"""A model as one library, without Dynamo: export it, compile it, call it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.utils._pytree import TreeSpec

from hetero_tvm.errors import InputError, ModelError, UsageError, expect
from hetero_tvm.frontend.torch.causes import refuse_without_values, untraceable
from hetero_tvm.frontend.torch.load import quiet
from hetero_tvm.frontend.torch.state import State, with_state
from hetero_tvm.runtime.library import Library
from hetero_tvm.runtime.opening import load
from hetero_tvm.torch.call import TensorCall
from hetero_tvm.torch.compiling import build, compiled
from hetero_tvm.torch.examine import first_line
from hetero_tvm.torch.options import Options


class CompiledModule:
    """A library that takes and gives what its model does.

    The weights are those that the model had when it was compiled; buffers that the model changes begin with
    the values that they had, and are kept here from call to call.  Call it with arguments of the structure,
    shapes and dtypes of the example.

    Parameters
    ----------
    library : the compiled program.
    program : what it was compiled from.
    structure : of the model's arguments and of its result.
    states : what the program changes.
    buffers : values of the buffers among these, by the program's name of them.
    """

    def __init__(
        self,
        library: Library,
        program: ExportedProgram,
        structure: tuple[TreeSpec, TreeSpec],
        states: Sequence[State] = (),
        buffers: Mapping[str, torch.Tensor] | None = None,
    ):
        self.library = library
        """The library; :attr:`path` is its file, which runs without PyTorch."""
        self._in, self._out = structure
        kinds = torch.export.graph_signature
        values = {node.name: node.meta.get("val") for node in program.graph.find_nodes(op="placeholder")}
        given = [
            spec.arg
            for spec in program.graph_signature.input_specs
            if spec.kind is kinds.InputKind.USER_INPUT
        ]
        self._expected = [
            values[arg.name] if isinstance(arg, kinds.TensorArgument) else arg.value for arg in given
        ]
        self._names = [arg.name for arg in given]
        outputs = [
            spec.arg
            for spec in program.graph_signature.output_specs
            if spec.kind is kinds.OutputKind.USER_OUTPUT
        ]
        self.state = {s.input: (buffers or {})[s.buffer].clone() for s in states if s.buffer is not None}
        """Buffers that the model changes, by the name of the library's input for them."""
        self._states = tuple(states)
        self._free = len(given) - len(self.state)
        leaf = torch.utils._pytree.tree_structure(0)
        plain = torch.utils._pytree.tree_structure(((0,) * self._free, {}))
        self._only_tensors = self._in == plain
        self._one_result = self._out == leaf and not states
        count = iter(range(len(outputs)))
        sources = [
            ("result", next(count)) if isinstance(arg, kinds.TensorArgument) else ("value", arg.value)
            for arg in outputs
        ]
        inputs = [self._names.index(spec.name) for spec in library.signature.inputs]
        self._call = TensorCall(library, inputs, sources)

    @property
    def path(self) -> Path:
        """The file of the library."""
        return self.library.path

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Results of the model.

        Raises
        ------
        InputError : arguments that the model was not compiled for; lists all.
        """
        if self._only_tensors and not kwargs and len(args) == self._free:
            flat, structure = list(args), self._in  # what is no tensor is refused below
        else:
            flat, structure = torch.utils._pytree.tree_flatten((args, kwargs))
        if structure != self._in:
            raise InputError(
                f"the arguments are {structure}, the model was compiled for {self._in}",
                hint="call it with arguments of the example's structure",
            )
        problems = [
            problem
            for name, want, have in zip(self._names, self._expected, flat, strict=False)
            if (problem := _difference(name, want, have))
        ]
        if problems:
            raise InputError(
                "the model was not compiled for these arguments",
                problems=problems,
                hint="compile it with such an example, or use torch.compile(model, backend='hetero_tvm')",
            )
        results = self._call([*flat, *(self.state[name] for name in self._names[self._free :])])
        if self._one_result:
            return results[0]
        count = len(results) - len(self._states)
        for state, result in zip(self._states, results[count:], strict=True):
            if state.buffer is not None:
                self.state[state.input] = result
            else:
                with torch.no_grad():
                    flat[self._names.index(state.input)].copy_(result)
        return torch.utils._pytree.tree_unflatten(results[:count], self._out)


def compile(  # noqa: A001
    model: torch.nn.Module | ExportedProgram,
    example: Sequence[Any] = (),
    *,
    kwargs: Mapping[str, Any] | None = None,
    path: str | os.PathLike[str] | None = None,
    **options: Any,
) -> CompiledModule:
    """Compile a model for inference to one library, with fixed shapes and without Dynamo.

    Parameters
    ----------
    model : a module, whose mode (``eval()``) stays as it is, or what ``torch.export`` makes.
    example : its arguments in order; a single tensor stands for one.
    kwargs : its arguments by name.
    path : ``.so`` or folder to write; by default the library stays in the cache of compiled graphs.
    options : see :class:`hetero_tvm.torch.options.Options`.

    Raises
    ------
    UsageError : an option or ``example`` is wrong.
    ModelError : the model cannot be exported, or uses unsupported operators (all are listed).
    """
    chosen = Options.of(options)
    expect(
        model,
        (torch.nn.Module, ExportedProgram),
        "hetero_tvm.torch.compile takes a torch.nn.Module or an exported program",
    )
    if isinstance(example, torch.Tensor):
        example = (example,)
    program = model if isinstance(model, ExportedProgram) else _exported(model, example, kwargs)
    structure = program.call_spec.in_spec, program.call_spec.out_spec
    program, states = with_state(program)
    if path is None:
        library, _ = compiled(program, chosen)
    else:
        library = load(build(program, chosen).export(path))
    buffers = {**program.constants, **program.state_dict}
    return CompiledModule(library, program, structure, states, buffers)


def _exported(
    model: torch.nn.Module, example: Sequence[Any], kwargs: Mapping[str, Any] | None
) -> ExportedProgram:
    if not isinstance(example, list | tuple):
        raise UsageError(f"example is a tuple of the model's arguments, not {type(example).__name__}")
    refuse_without_values(
        (
            *model.named_parameters(),
            *model.named_buffers(),
            *((f"argument {n}", value) for n, value in enumerate(example)),
            *(kwargs or {}).items(),
        )
    )
    try:
        with torch.no_grad(), quiet(), _numbers_kept(model):
            return torch.export.export(model, tuple(example), dict(kwargs or {}), strict=False)
    except Exception as error:  # tracing raises whatever the model causes
        raise untraceable(error) or ModelError(
            f"PyTorch cannot export the model. {first_line(error)}",
            hint="torch.compile(model, backend='hetero_tvm') compiles what can be traced of a model",
        ) from error


@contextlib.contextmanager
def _numbers_kept(model: torch.nn.Module) -> Iterator[None]:
    """Numbers that objects of the model hold, which PyTorch's tracer changes, as they were before.

    It computes operators on constants of one element as it records them, those in place included: a cache
    that counts its tokens (``StaticCache``) would begin at the token behind the example.
    """
    before = [(tensor, tensor._version, tensor.clone()) for tensor in _tensors_of_objects(model)]
    try:
        yield
    finally:
        for tensor, version, value in before:
            if tensor._version != version:
                tensor.copy_(value)


def _tensors_of_objects(model: torch.nn.Module) -> list[torch.Tensor]:
    """Tensors of one element in the attributes of a model and of objects there; no parameters."""
    found, seen, left = [], set(), [vars(module) for module in model.modules()]
    while left:
        value: Any = left.pop()
        if id(value) in seen or isinstance(value, _NO_HOLDERS):
            continue
        seen.add(id(value))
        if isinstance(value, torch.Tensor):
            if value.numel() == 1 and value.layout is torch.strided and value.device.type == "cpu":
                found.append(value)
        elif isinstance(value, Mapping):
            left.extend(value.values())
        elif isinstance(value, list | tuple | set):
            left.extend(value)
        elif hasattr(value, "__dict__"):
            left.append(vars(value))
    return found


_NO_HOLDERS = type, ModuleType, FunctionType, torch.nn.Module, torch.nn.Parameter, str, int, float


def _difference(name: str, want: Any, have: Any) -> str | None:
    """Reason why an argument is not what was compiled for; None where it is."""
    if not isinstance(want, torch.Tensor):
        same = type(want) is type(have) and want == have
        return None if same else f"{name} is {have!r}, it was compiled for {want!r}"
    if not isinstance(have, torch.Tensor):
        return f"{name} is no tensor but {type(have).__name__}"
    if have.device.type != "cpu" or have.layout is not torch.strided:
        return f"{name} is a {have.layout} tensor on {have.device}, it must be a dense one on the CPU"
    if have.dtype != want.dtype or tuple(have.shape) != tuple(want.shape):
        return f"{name} is {have.dtype}{list(have.shape)}, expected {want.dtype}{list(want.shape)}"
    return None
