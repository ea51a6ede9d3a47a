"""``python -m tests.campaign.states [FIRST LAST]``: steps of random state models beside ONNX Runtime.

A program has up to three states: some grow, with their axes in any order, others have rows that are written
by scatters or a selection; presents, and sometimes pasts, are read by attention, sums and maxima.  Sessions
step, fork, rewind, reorder and begin again in a random order.  10 s each.
"""

from __future__ import annotations

import random
import sys
import tempfile
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx

import hetero_tvm
from hetero_tvm import Span

_ROWS, _DIM, _ROOM = 8, 4, 20
_ORDERS = {"b,past,4": (1, None), "past,b,4": (0, "1,0,2"), "b,4,past": (2, "0,2,1")}
"""Shape of a state that grows -> the axis, and what turns it to [b, past, 4] and back."""
_CONSTANTS = "one = Constant<value_ints=[1]>() minus = Constant<value_ints=[-1]>()"
_READS = {
    "attention": """turned_N = Transpose<perm=[0, 2, 1]>(READ) scores_N = MatMul(FROM, turned_N)
        shares_N = Softmax<axis=-1>(scores_N) read_N = MatMul(shares_N, READ)""",
    "sum": "sum_N = ReduceSum<keepdims=1>(READ, one) read_N = Mul(FROM, sum_N)",
    "maximum": "most_N = ReduceMax<axes=[1], keepdims=1>(READ) read_N = Sub(FROM, most_N)",
}
_WRITES = {
    "scatter_nd": "OUT = ScatterND(NAME, at, rows)",
    "scatter_elements": """wide_N = Unsqueeze(at, minus) extents_N = Shape(rows)
        where_N = Expand(wide_N, extents_N) OUT = ScatterElements<axis=0>(NAME, where_N, rows)""",
    "selection": """numbers_N = Constant<value_ints=[0, 1, 2, 3, 4, 5, 6, 7]>()
        last_N = ReduceMax<keepdims=0>(at) same_N = Equal(numbers_N, last_N)
        axes_N = Constant<value_ints=[1, 2]>() mask_N = Unsqueeze(same_N, axes_N)
        most_of_N = ReduceMax<axes=[0], keepdims=1>(rows) OUT = Where(mask_N, most_of_N, NAME)""",
    "twice": """first_N = ScatterND(NAME, at, rows) found_N = GatherND(first_N, at) less_N = Neg(found_N)
        OUT = ScatterND(first_N, at, less_N)""",
}


@dataclass(frozen=True)
class State:
    """A state of a program: input, output, shape, and the axis that grows."""

    name: str
    output: str
    shape: str
    grows: int | None

    def empty(self, batch: int) -> np.ndarray:
        """What it begins with."""
        sizes = {"b": batch, "past": 0, str(_ROWS): _ROWS, str(_DIM): _DIM}
        return np.zeros([sizes[extent] for extent in self.shape.split(",")], np.float32)


def program(choose: random.Random) -> tuple[onnx.ModelProto, list[State]]:
    """A step, and its states."""
    states, body, reads = [], [_CONSTANTS, "rows = Transpose<perm=[1, 0, 2]>(x)"], []

    def turned(name: str, permutation: str | None) -> str:
        if permutation is None:
            return name
        body.append(f"{name}_turned = Transpose<perm=[{permutation}]>({name})")
        return f"{name}_turned"

    empty: set[str] = set()  # what may be: a maximum of nothing is none
    growing, fixed = choose.choice([(1, 0), (0, 1), (2, 0), (1, 1), (0, 2), (2, 1)])
    for n in range(growing):
        shape = choose.choice(list(_ORDERS))
        axis, permutation = _ORDERS[shape]
        state = State(f"past_{n}", f"present_{n}", shape, axis)
        states.append(state)
        body.append(f"new_{n} = {choose.choice(['Tanh', 'Neg', 'Identity'])}(x)")
        ends = [state.name, turned(f"new_{n}", permutation)]
        if choose.random() < 0.25:
            ends.reverse()
        body.append(f"{state.output} = Concat<axis={axis}>({', '.join(ends)})")
        reads.append(turned(state.output, permutation))
        if choose.random() < 0.25:
            reads.append(turned(state.name, permutation))
            empty.add(reads[-1])
    for n in range(fixed):
        state = State(f"cache_{n}", f"cache_{n}_out", f"{_ROWS},b,{_DIM}", None)
        states.append(state)
        write = choose.choice(list(_WRITES.values()))
        body.append(write.replace("NAME", state.name).replace("OUT", state.output).replace("_N", f"_w{n}"))
        reads.append(turned(choose.choice([state.output] * 4 + [state.name]), "1,0,2"))
    result = "x"
    for n, read in enumerate(reads):
        text = _READS[choose.choice(["attention", "sum", *(["maximum"] if read not in empty else [])])]
        body.append(text.replace("READ", read).replace("FROM", result).replace("_N", f"_r{n}"))
        body.append(f"step_{n} = Tanh(read_r{n})")
        result = f"step_{n}"
    body.append(f"y = Add({result}, x)")
    inputs = ["float[b,n,4] x", "int64[n,1] at", *(f"float[{s.shape}] {s.name}" for s in states)]
    outputs = [f"float[{s.shape.replace('past', 'total')}] {s.output}" for s in states]
    ends = f"({', '.join(inputs)}) => (float[b,n,4] y, {', '.join(outputs)})"
    text = f'<ir_version: 8, opset_import: ["": 17]>\nstep {ends}\n{{ {" ".join(body)} }}'
    return onnx.parser.parse_model(text), states


def compare(seed: int) -> str:
    """What differs; empty when nothing does."""
    import onnxruntime

    model, states = program(random.Random(seed))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    function = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    shapes = {"b": (Span(1, 3),), "n": (Span(1, 3),)}
    if any(state.grows is not None for state in states):
        shapes["past"] = (Span(0, _ROOM),)
    built = hetero_tvm.build_model(hetero_tvm.optimize_model(hetero_tvm.import_model(model, shapes=shapes)))
    with tempfile.TemporaryDirectory(prefix="hetero_tvm-states-") as folder:
        net = hetero_tvm.load(built.export(folder))
        generator = np.random.default_rng(seed)
        return next(filter(None, (_walk(net, function, states, generator) for _ in range(3))), "")


def _walk(net: Any, function: Any, states: list[State], generator: np.random.Generator) -> str:
    """One walk of sessions that are forked from one another."""
    batch = int(generator.integers(1, 4))
    live = [(net.session(), {s.name: s.empty(batch) for s in states})]
    names = {value.name for value in function.get_inputs()}
    alike = len({state.grows for state in states}) == 1
    for _ in range(14):
        at = int(generator.integers(len(live)))
        session, held = live[at]
        length = session.length
        begun = bool(session.states)
        action = generator.choice(["step"] * 6 + ["fork", "rewind", "reorder", "reset"])
        if action == "step" and length <= _ROOM - 3:
            count = int(generator.integers(1, 4))
            rows = next(held[s.name].shape[s.shape.split(",").index("b")] for s in states)
            x = generator.standard_normal((rows, count, _DIM)).astype(np.float32)
            places = generator.permutation(_ROWS)[:count].reshape(count, 1)
            given = {k: v for k, v in {"x": x, "at": places, **held}.items() if k in names}
            wanted = dict(
                zip([v.name for v in function.get_outputs()], function.run(None, given), strict=True)
            )
            found = session(x=x, at=places)
            held = {s.name: wanted[s.output] for s in states}
            pairs = [("y", found, wanted["y"]), *((n, session.states[n], held[n]) for n in held)]
            for name, got, right in pairs:
                if not np.allclose(got, right, rtol=1e-4, atol=2e-5):  # float32 sums in another order
                    return f"{name} is {np.abs(got - right).max()} off"
            live[at] = session, held
        elif action == "fork" and len(live) < 4:
            live.append((session.fork(), dict(held)))
        elif action == "reset":
            session.reset()
            live[at] = session, {s.name: s.empty(batch) for s in states}
        elif action == "rewind" and begun and all(s.grows is not None for s in states) and length > 1:
            back = int(generator.integers(length))
            session.rewind(back)
            live[at] = session, {s.name: np.take(held[s.name], range(length - back), s.grows) for s in states}
        elif action == "reorder" and begun and alike and states[0].grows != 0:
            axis = states[0].shape.split(",").index("b")
            rows = generator.integers(0, held[states[0].name].shape[axis], generator.integers(1, 4)).tolist()
            session.reorder(rows, axis=axis)
            live[at] = session, {name: np.take(array, rows, axis) for name, array in held.items()}
    return ""


def main() -> int:
    """Compare the programs of a range of seeds."""
    first, last = map(int, sys.argv[1:3]) if len(sys.argv) > 2 else (0, 20)
    failed = 0
    for seed in range(first, last):
        found = compare(seed)
        failed += bool(found)
        print(f"{seed}: {found or 'as it should be'}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
