"""Sessions: a library whose results come back as inputs, called step by step.

A decoder takes the keys and values of the past and gives those of the present, a recurrent cell its state, a
program with a static cache the buffers that it changed.  A session holds them between calls: results of one
call are inputs of the next as they lie, without a copy.

Where the library has a *step*, states lie in buffers, those that grow with room for all that they may become,
and a call writes what is new behind or into what there is (``compile/dynamic/steps.py``).  Sessions that were
forked share buffers until one of them goes on.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetero_tvm.errors import InputError, expect
from hetero_tvm.runtime.arrays import numpy_dtype
from hetero_tvm.runtime.signature import Signature, TensorSpec, size_of

_RENAMINGS = (
    (r"$", "_out"),
    (r"_in$", "_out"),
    (r"past_key_values", "present"),
    (r"past_key_values", "present_key_values"),
    (r"past", "present"),
    (r"^", "new_"),
    (r"^", "present_"),
)
"""Name of an input -> of the output that it comes back as, by the habits of exporters."""

Run = Callable[..., Any]


@dataclass
class Buffer:
    """Memory with room for a state, and the number of sessions whose state lies in it."""

    tensor: Any
    array: np.ndarray
    users: int = 1

    def holds(self, array: np.ndarray) -> bool:
        """Whether ``array`` is the front of this memory."""
        return array.strides == self.array.strides and array.ctypes.data == self.array.ctypes.data


@dataclass(frozen=True)
class InPlace:
    """A library's step.

    Attributes
    ----------
    room : as in :class:`Step`.
    allocate : (shape, dtype) -> a buffer.
    run : (all inputs by name, buffers by name) -> the results, but those that lie in the buffers.
    """

    room: Mapping[str, int]
    allocate: Callable[[tuple[int, ...], str], Buffer]
    run: Callable[[Mapping[str, Any], Mapping[str, Buffer]], Sequence[np.ndarray]]


@dataclass(frozen=True)
class State:
    """An input that comes back as an output.

    Attributes
    ----------
    input, output : the two ends.
    place : of the output among the results.
    grows : axis along which every call adds; None for a state of one size.
    """

    input: TensorSpec
    output: TensorSpec
    place: int
    grows: int | None


def states_of(signature: Signature, names: Mapping[str, str] | None = None) -> tuple[State, ...]:
    """States of a library: those that ``names`` says (input -> output), or that names show.

    Raises
    ------
    InputError : a name that is none, or two ends that do not fit; all are listed.
    """
    expect(names, (Mapping, type(None)), "states are outputs by input, as in {'hidden': 'hidden_next'}")
    inputs = {spec.name: spec for spec in signature.inputs}
    places = {spec.name: place for place, spec in enumerate(signature.results)}
    problems, found = [], []
    for name, output in (_paired(inputs, places) if names is None else names).items():
        if name not in inputs or output not in places:
            problems.append(f"{name} -> {output}: there is no such {'output' if name in inputs else 'input'}")
            continue
        one, other = inputs[name], signature.results[places[output]]
        differing = [n for n, (a, b) in enumerate(zip(one.shape, other.shape, strict=False)) if a != b]
        fits = one.dtype == other.dtype and len(one.shape) == len(other.shape) and len(differing) <= 1
        if fits and all(isinstance(one.shape[axis], str) for axis in differing):
            found.append(State(one, other, places[output], differing[0] if differing else None))
        elif names is not None:
            problems.append(f"{one} does not come back as {other}")
    if problems:
        raise InputError("these are no states", problems=problems, hint=f"the library is {signature}")
    return tuple(found)


def _paired(inputs: Mapping[str, Any], outputs: Mapping[str, Any]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for name in inputs:
        for pattern, other in _RENAMINGS:
            output = re.sub(pattern, other, name, count=1)
            if output != name and output in outputs and output not in pairs.values():
                pairs[name] = output
                break
    return pairs


class Session:
    """A library with its states: call it with the other inputs, and get the other results.

    Several sessions of one library share its code and weights.  A call that fails leaves the states as they
    were.

    >>> session = net.session()
    >>> logits = session(input_ids=prompt, attention_mask=ones)
    >>> logits = session(input_ids=token, attention_mask=longer)

    Parameters
    ----------
    run : the library.
    signature : of the library.
    states : what stays between calls.
    initial : arrays to begin with, by name of the input; zeros, and nothing where a state grows, otherwise.
    in_place : the library's step, where it has one for these states.
    """

    def __init__(
        self,
        run: Run,
        signature: Signature,
        states: Sequence[State],
        initial: Mapping[str, Any] | None = None,
        in_place: InPlace | None = None,
    ):
        expect(initial, (Mapping, type(None)), "initial is arrays by name of a state")
        self._run, self._signature, self._states = run, signature, tuple(states)
        self._in_place = in_place
        self._buffers: dict[str, Buffer] = {}
        unknown = sorted(set(initial or {}) - {state.input.name for state in states})
        if unknown:
            raise InputError(
                f"no state is called {', '.join(unknown)}",
                hint=f"states: {', '.join(s.input.name for s in states) or 'none'}",
            )
        slots = {state.input.name: state.input for state in states}
        self._initial = {name: _array_for(slots[name], value) for name, value in (initial or {}).items()}
        self._arrays = dict(self._initial)
        self._free = [
            spec for spec in signature.inputs if spec.name not in {state.input.name for state in states}
        ]
        kept = {state.place for state in states}
        self._given = [place for place in range(len(signature.results)) if place not in kept]

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        """Run one step; inputs in order, or by name.

        Raises
        ------
        InputError : wrong inputs, or a state that has no room for more.
        """
        names = [spec.name for spec in self._free]
        if len(args) > len(names):
            raise InputError(
                f"{len(args)} arrays are given in order",
                hint=f"a step takes {', '.join(map(str, self._free))}",
            )
        given = dict(zip(names, args, strict=False))
        if twice := sorted(set(given) & set(kwargs)):
            raise InputError(f"{', '.join(twice)}: given twice, in order and by name")
        given |= kwargs
        if clash := sorted(name for name in given if name in self._arrays or name not in names):
            raise InputError(
                f"{', '.join(clash)}: no input of a step",
                hint=f"a step takes {', '.join(map(str, self._free))}; the session holds the rest",
            )
        states = {state.input.name: self._array(state, given) for state in self._states}
        self._room(states)
        several = self._results(given, states)
        self._arrays = {state.input.name: several[state.place] for state in self._states}
        kept = tuple(several[place] for place in self._given)
        return kept[0] if len(kept) == 1 else kept

    def _results(self, given: Mapping[str, Any], states: dict[str, np.ndarray]) -> Sequence[np.ndarray]:
        """Results of a call, those that are written behind a state as the front of its buffer."""
        if self._in_place is None:
            results = self._run(**given, **states)
            return results if isinstance(results, tuple) else (results,)
        room, fronts = self._in_place.room, {}
        sizes: dict[str, int] = {}
        for spec in self._signature.inputs:
            shape = np.shape(states[spec.name] if spec.name in states else given.get(spec.name))
            sizes |= {
                name: size for name, size in zip(spec.shape, shape, strict=False) if isinstance(name, str)
            }
        kept = [state for state in self._states if state.input.name in room]
        buffers = {state.input.name: self._buffer(state, states[state.input.name]) for state in kept}
        results = iter(self._in_place.run({**given, **states}, buffers))
        for state in kept:
            front = [slice(None)] * len(state.input.shape)
            if state.grows is not None:
                front[state.grows] = slice(size_of(state.output.shape[state.grows], sizes))
            fronts[state.place] = buffers[state.input.name].array[tuple(front)]
        for name, known in self._buffers.items():
            known.users -= known is not buffers[name]
        self._buffers = buffers
        places = range(len(self._signature.results))
        return [fronts[place] if place in fronts else next(results) for place in places]

    def _buffer(self, state: State, array: np.ndarray) -> Buffer:
        """A buffer that is this session's alone, with the state at its front."""
        assert self._in_place is not None
        name = state.input.name
        shape = list(array.shape)
        if state.grows is not None:
            shape[state.grows] = self._in_place.room[name]
        known = self._buffers.get(name)
        if known is not None and known.users == 1 and known.array.shape == tuple(shape):
            if known.holds(array):
                return known
            fresh = known
        else:
            fresh = self._in_place.allocate(tuple(shape), state.input.dtype)
        front = [slice(None)] * array.ndim
        if state.grows is not None:
            front[state.grows] = slice(array.shape[state.grows])
        fresh.array[tuple(front)] = array
        return fresh

    @property
    def states(self) -> dict[str, np.ndarray]:
        """Copies of the states, by name of the input; empty before the first call."""
        return {name: array.copy() for name, array in self._arrays.items()}

    @property
    def length(self) -> int:
        """Elements along the axis that grows, of the first state that does; 0 where none does."""
        for state in self._states:
            if state.grows is not None and state.input.name in self._arrays:
                return int(self._arrays[state.input.name].shape[state.grows])
        return 0

    def reset(self) -> None:
        """Begin again."""
        self._arrays = dict(self._initial)

    def fork(self) -> Session:
        """A session of its own with the same states; they are shared until one of them goes on."""
        other = Session(self._run, self._signature, self._states, in_place=self._in_place)
        other._initial, other._arrays, other._buffers = self._initial, dict(self._arrays), dict(self._buffers)
        for buffer in self._buffers.values():
            buffer.users += 1
        return other

    def rewind(self, steps: int) -> None:
        """Forget the last ``steps`` elements of what grows.

        Raises
        ------
        InputError : there are fewer, or a state does not grow along with the others: what it was is not kept.
        """
        try:
            steps = operator.index(steps)
        except TypeError:
            raise InputError(f"{steps!r} is no number of elements", hint="as in session.rewind(1)") from None
        axes = {state.input.name: state.grows for state in self._states}
        sizes = {array.shape[axes[n] or 0] for n, array in self._arrays.items()} or {0}
        why = ""
        if None in axes.values() or len(sizes) > 1:
            why = "not all states grow alike"
        elif not 0 <= steps <= self.length:
            why = f"it has {self.length}"
        if why:
            raise InputError(
                f"the session cannot go back {steps} elements: {why}",
                hint="keep a session.fork() to return to",
            )
        for name, array in self._arrays.items():
            kept = [slice(None)] * array.ndim
            kept[axes[name] or 0] = slice(array.shape[axes[name] or 0] - steps)
            shorter = array[tuple(kept)]
            self._arrays[name] = shorter if name in self._buffers else np.ascontiguousarray(shorter)

    def reorder(self, rows: Sequence[int], axis: int | None = None) -> None:
        """Take rows of every state anew, as a beam search does: row n is what row ``rows[n]`` was.

        Parameters
        ----------
        axis : of the rows; by default that which has the first dimension of the first input, where that is
            open, and 0 otherwise.

        Raises
        ------
        InputError : no whole numbers, a row that is none, or no such axis.
        """
        try:
            index = np.asarray(rows)
        except ValueError:
            index = np.empty(0)
        if index.ndim != 1 or index.dtype.kind not in "iu" or not index.size:
            raise InputError("rows are whole numbers", hint="as in session.reorder([0, 0, 2])")
        batch = self._free[0].shape[0] if self._free and self._free[0].shape else None
        taken = {}
        for state in self._states:
            name, shape = state.input.name, state.input.shape
            if name not in self._arrays:
                raise InputError("the session has no rows yet", hint="call it first")
            own = axis
            if own is None:
                own = shape.index(batch) if isinstance(batch, str) and batch in shape else 0
            array = self._arrays[name]
            if not isinstance(own, int) or not 0 <= own < array.ndim:
                raise InputError(f"{name} has no axis {own}", hint=f"it is {state.input}")
            if index.min() < 0 or index.max() >= array.shape[own]:
                raise InputError(
                    f"{name} has rows 0 to {array.shape[own] - 1}, not {index.min()} to {index.max()}",
                    hint="session.reorder(rows, axis=1) where rows lie elsewhere",
                )
            taken[name] = np.take(array, index, own)
        self._arrays = taken

    def _array(self, state: State, given: Mapping[str, Any]) -> np.ndarray:
        """The state as it is, or as it begins with these inputs."""
        known = self._arrays.get(state.input.name)
        if known is not None:
            return known
        sizes = {symbol.name: symbol.low for symbol in self._signature.symbols}
        if state.grows is not None and sizes.get(str(state.input.shape[state.grows]), 0) > 0:
            symbol = state.input.shape[state.grows]
            raise InputError(
                f"{state.input.name} cannot begin empty: the library takes a {symbol} from "
                f"{sizes[str(symbol)]} on",
                hint=f"give net.session(initial={{...}}), or build with --shape {symbol}=0..N",
            )
        for spec in self._free:
            value = given.get(spec.name)
            shape = value.shape if hasattr(value, "shape") else ()
            for name, size in zip(spec.shape, shape, strict=False):
                if name in sizes:
                    sizes[str(name)] = size
        for grown in (other for other in self._states if other.grows is not None):
            sizes[str(grown.input.shape[grown.grows])] = 0
        shape = tuple(size_of(size, sizes) for size in state.input.shape)
        return np.zeros(shape, numpy_dtype(state.input.dtype))

    def _room(self, states: Mapping[str, np.ndarray]) -> None:
        """Refuse a state that has grown too long for a call."""
        highs = {symbol.name: symbol.high for symbol in self._signature.symbols}
        for state in self._states:
            if state.grows is None:
                continue
            symbol, size = state.input.shape[state.grows], states[state.input.name].shape[state.grows]
            if size > highs.get(str(symbol), size):
                raise InputError(
                    f"the session is full: {state.input.name} has {size} elements, "
                    f"and the library takes up to {highs[str(symbol)]}",
                    hint=f"rewind() or reset() it, or build the library for a longer {symbol}",
                )

    def __repr__(self) -> str:
        held = ", ".join(
            f"{state.input}{' grows' if state.grows is not None else ''}" for state in self._states
        )
        return f"<Session of {self.length} elements: {held}>"


def _array_for(spec: TensorSpec, value: Any) -> np.ndarray:
    """Array that a state begins with.  :class:`InputError` where that is of another shape or type."""
    try:
        array = np.array(
            value, numpy_dtype(spec.dtype) if isinstance(value, list | tuple | int | float) else None
        )
    except ValueError as error:
        raise InputError(f"{spec.name} cannot begin with that: {error}") from None
    fits = len(array.shape) == len(spec.shape) and all(
        isinstance(want, str) or want == have for want, have in zip(spec.shape, array.shape, strict=True)
    )
    if not fits or array.dtype != numpy_dtype(spec.dtype):
        raise InputError(
            f"{spec.name} cannot begin with {array.dtype}{list(array.shape)}", hint=f"it is {spec}"
        )
    return array
