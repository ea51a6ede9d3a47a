"""RNN, GRU and LSTM in all their options: equal to ONNX Runtime, or to ONNX's own evaluator."""

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from hetero_tvm.api import build_model, import_model, optimize_model
from hetero_tvm.errors import ModelError, UnsupportedOperatorError
from hetero_tvm.frontend import import_onnx
from hetero_tvm.frontend.onnx.bodies import recurrent
from hetero_tvm.frontend.onnx.bodies.recurrent import _with_checked_lengths as with_checked_lengths
from hetero_tvm.ops.loops.recurrence import Recurrence
from tests.frontend.onnx.helpers import add_weight, run_onnxruntime, text_model
from tests.selection import thorough

STEPS, BATCH, FEATURES, HIDDEN = 3, 3, 6, 8
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
LENGTHS = "lengths"


class Layers:
    """Collects recurrent layers over one input; every result is an output."""

    def __init__(self, opset=17, steps=STEPS, batch_first=False):
        self.opset, self.batch_first = opset, batch_first
        self.generator = np.random.default_rng(steps)
        shape = (BATCH, steps, FEATURES) if batch_first else (steps, BATCH, FEATURES)
        self.feeds = {"x": self.noise(*shape)}
        self.nodes, self.weights, self.outputs = [], [], []

    def noise(self, *shape):
        return self.generator.standard_normal(shape, np.float32) / shape[-1] ** 0.5

    def weight(self, array):
        self.weights.append(numpy_helper.from_array(array, f"w{len(self.weights)}"))
        return self.weights[-1].name

    def add(
        self, kind, *, bias=True, lengths=None, state=None, peephole=False, outputs=(0, 1, 2), **attributes
    ):
        """``lengths``: an array, or the input of that name; ``state``: "input" or "zeros"."""
        directions = 2 if attributes.get("direction") == "bidirectional" else 1
        rows = GATES[kind] * HIDDEN
        inputs = [
            "x",
            self.weight(self.noise(directions, rows, FEATURES)),
            self.weight(self.noise(directions, rows, HIDDEN)),
            self.weight(self.noise(directions, 2 * rows)) if bias else "",
        ]
        if lengths is LENGTHS:
            self.feeds[LENGTHS] = np.array([STEPS, 2, 1], np.int32)
            inputs.append(LENGTHS)
        else:
            inputs.append("" if lengths is None else self.weight(np.array(lengths, np.int32)))
        shape = (BATCH, directions, HIDDEN) if self.batch_first else (directions, BATCH, HIDDEN)
        for _ in range(2 if kind == "LSTM" else 1):
            if state == "input":
                inputs.append(f"state{len(self.feeds)}")
                self.feeds[inputs[-1]] = self.noise(*shape)
            else:
                inputs.append(self.weight(np.zeros(shape, np.float32)) if state else "")
        if peephole:
            inputs.append(self.weight(self.noise(directions, 3 * HIDDEN)))
        number = len(self.nodes)
        count = 3 if kind == "LSTM" else 2
        names = [f"y{number}_{n}" if n in outputs else "" for n in range(count)]
        self.outputs += [(name, 4 if n == 0 else 3) for n, name in enumerate(names) if name]
        self.nodes.append(
            helper.make_node(kind, inputs, names, f"layer{number}", hidden_size=HIDDEN, **attributes)
        )
        return self

    def proto(self):
        types = {np.dtype(np.float32): TensorProto.FLOAT, np.dtype(np.int32): TensorProto.INT32}
        graph = helper.make_graph(
            self.nodes,
            "layers",
            [helper.make_tensor_value_info(n, types[a.dtype], a.shape) for n, a in self.feeds.items()],
            [helper.make_tensor_value_info(n, TensorProto.FLOAT, [None] * r) for n, r in self.outputs],
            self.weights,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=8)

    def check(self):
        proto = self.proto()
        ours = build_model(optimize_model(import_model(proto)), use_shipped=False).run(self.feeds)
        if self.batch_first:  # ONNX Runtime's CPU kernels have no such layout
            theirs = ReferenceEvaluator(proto).run(None, self.feeds)
        else:
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = 1
            theirs = onnxruntime.InferenceSession(
                proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
            ).run(None, self.feeds)
        for (name, _), one, two in zip(self.outputs, ours, theirs, strict=True):
            assert one.shape == two.shape, name
            # States lie within 1 to 3; float32 sums in another order, a few steps after one another.
            np.testing.assert_allclose(one, two, rtol=0, atol=2e-6, err_msg=name)


@pytest.mark.thorough
def test_lstm():
    m = Layers().add("LSTM").add("LSTM", bias=False, state="zeros", outputs=(1,))
    m.add("LSTM", direction="bidirectional", state="input", peephole=True, lengths=LENGTHS)
    m.add("LSTM", direction="reverse", lengths=[2, STEPS, 1], clip=0.2, outputs=(0, 2))
    m.add("LSTM", state="input", input_forget=1)
    names = ["HardSigmoid", "ScaledTanh", "relu"]
    m.add("LSTM", activations=names, activation_alpha=[0.3, 1.1], activation_beta=[0.4, 0.7])
    m.check()


@pytest.mark.thorough
def test_gru_and_rnn():
    m = Layers(opset=14).add("GRU").add("GRU", linear_before_reset=1, bias=False)
    m.add("GRU", direction="bidirectional", linear_before_reset=1, state="input", lengths=LENGTHS)
    m.add("GRU", direction="bidirectional", state="input", lengths=[1, STEPS, 2], clip=0.4)
    m.add("RNN").add("RNN", direction="bidirectional", state="input", activations=["Relu", "Tanh"])
    m.add("RNN", lengths=LENGTHS, activations=["Affine"], activation_alpha=[0.5], activation_beta=[0.1])
    m.check()


@pytest.mark.thorough
def test_before_opset_13():
    Layers(opset=11).add("LSTM").add("GRU", linear_before_reset=1).check()


@pytest.mark.thorough
def test_batch_first():
    m = Layers(batch_first=True).add("LSTM", layout=1, state="input").add("GRU", layout=1)
    m.check()


@pytest.mark.parametrize("steps", [1, 19])
def test_lengths(steps):
    """One step, and more than one Split or Concat takes."""
    Layers(steps=steps).add("RNN", direction="bidirectional").check()


@pytest.mark.thorough
def test_sequences_without_steps_end_with_zeros():
    """Also where their states begin with something else."""
    m = Layers(steps=2).add("GRU", state="input", lengths=LENGTHS)
    m.add("LSTM", state="input", direction="bidirectional", lengths=[0, 2, 0])
    m.feeds[LENGTHS] = np.array([0, 2, 1], np.int32)
    m.check()


@pytest.mark.thorough
def test_steps_are_the_same_kernels():
    layer = Layers(steps=16).add("LSTM", outputs=(0,), state="input", clip=1.0)
    plan = optimize_model(import_model(layer.proto()))
    counts = sorted(task.count for task in plan.tasks)
    # Every step is a product, a cell and a state (the last cell is nobody's: it is part of the state);
    # around them are the input's product and parts.
    assert counts[-3:] == [15, 15, 16]
    assert sum(counts[:-3]) <= 5


@pytest.mark.parametrize("kind, more", [("LSTM", {}), ("GRU", {"linear_before_reset": 1}), ("RNN", {})])
def test_common_forms_are_one_kernel(kind, more):
    layer = Layers(steps=5000).add(kind, outputs=(0,), lengths=[5000] * BATCH, **more)
    plan = optimize_model(import_model(layer.proto()))
    assert sum(isinstance(task.op, Recurrence) for task in plan.tasks) == 1
    assert sum(task.count for task in plan.tasks) <= 3


def test_lengths_are_checked_once(monkeypatch):
    checked = []
    monkeypatch.setattr(
        recurrent,
        "_with_checked_lengths",
        lambda *given: checked.append(given) or with_checked_lengths(*given),
    )
    layer = Layers().add("LSTM", lengths=LENGTHS, state="zeros", direction="bidirectional")
    import_model(layer.proto())
    assert len(checked) == 1


def test_refused():
    with pytest.raises(UnsupportedOperatorError, match="'layer0' .RNN. has the activation 'Gelu'"):
        import_model(Layers().add("RNN", activations=["Gelu"]).proto())
    with pytest.raises(ModelError, match="names 1 activations; it takes 3"):
        import_model(Layers().add("LSTM", activations=["Tanh"]).proto())
    with pytest.raises(ModelError, match=r"'layer0' \(GRU\) has operands .* do not go together"):
        broken = Layers().add("GRU").proto()
        broken.graph.node[0].input[1] = broken.graph.node[0].input[2]
        import_model(broken)


def test_unknown_length():
    """The length of a sequence that is cut by values: no number of steps."""
    m = Layers().add("RNN", outputs=(1,))
    m.feeds["mask"] = np.ones(STEPS, np.int32)
    m.nodes.insert(0, helper.make_node("Compress", ["x", "flags"], ["cut"], "compress", axis=0))
    m.nodes.insert(0, helper.make_node("Cast", ["mask"], ["flags"], "flags", to=TensorProto.BOOL))
    m.nodes[-1].input[0] = "cut"
    with pytest.raises(UnsupportedOperatorError, match="depends on values") as caught:
        import_model(m.proto())
    assert "'layer0'" in str(caught.value)


@pytest.mark.parametrize("operator", [*thorough(["GRU"]), "LSTM"])
def test_infinite_weights_of_a_state_of_zeros_are_nan(operator):
    """Zero times infinity is NaN, though the first step needs no product of its state otherwise."""
    gates = {"GRU": 3, "LSTM": 4}[operator]
    source = text_model(
        f"g (float[2,1,2] x, float[1,{3 * gates},3] r) => (float[2,1,1,3] y)"
        f"{{ y = {operator}<hidden_size = 3>(x, w, r) }}"
    )
    random = np.random.default_rng(0)
    add_weight(source, "w", random.standard_normal((1, 3 * gates, 2), np.float32))
    given = {
        "x": random.standard_normal((2, 1, 2), np.float32),
        "r": random.standard_normal((1, 3 * gates, 3), np.float32),
    }
    given["r"][0, 1, 2] = -np.inf
    (wanted,) = run_onnxruntime(source, given)
    (found,) = build_model(optimize_model(import_onnx(source)), use_shipped=False).run(given)
    assert np.isnan(wanted[0]).any()
    np.testing.assert_array_equal(np.isnan(found), np.isnan(wanted))
