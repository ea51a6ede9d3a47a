"""Orders of reads and writes of states: what each step gives is what the model gives as a function."""

import numpy as np
import onnx
import pytest

import hetero_tvm

ort = pytest.importorskip("onnxruntime")

_MODEL = """
<ir_version: 8, opset_import: ["": 17]>
step (float[2, 4] x, int64[2, 1] at, int64[2, 1] bt, float[8, 4] a_cache, float[8, 4] b_cache)
    => (float[2, 4] y, float[8, 4] seen, float[8, 4] a_cache_out, float[8, 4] b_cache_out)
{ BODY }
"""
_ORDERS = {
    "what was there before and after": """
        a_cache_out = ScatterND(a_cache, at, x) b_cache_out = ScatterND(b_cache, bt, x)
        o = GatherND(a_cache, bt) n = GatherND(a_cache_out, bt) y = Sub(n, o) seen = Identity(a_cache)""",
    "states that change places": """
        a_cache_out = ScatterND(b_cache, at, x) b_cache_out = ScatterND(a_cache, bt, x)
        y = GatherND(a_cache, at) seen = Identity(a_cache_out)""",
    "a write to what was written, read in between and later": """
        m = ScatterND(a_cache, at, x) o = GatherND(m, bt) z = Add(o, x) a_cache_out = ScatterND(m, bt, z)
        b_cache_out = Identity(b_cache) y = GatherND(m, at) seen = Mul(m, m)""",
    "rows of the state itself and of the other": """
        o = GatherND(b_cache, at) a_cache_out = ScatterND(a_cache, at, o)
        p = GatherND(a_cache, bt) b_cache_out = ScatterND(b_cache, bt, p)
        y = Add(o, p) seen = Add(a_cache, b_cache)""",
    "two states of one": """
        a_cache_out = ScatterND(a_cache, at, x) b_cache_out = ScatterND(a_cache, bt, x)
        y = GatherND(b_cache, at) seen = Identity(b_cache)""",
}


@pytest.mark.thorough
@pytest.mark.parametrize("order", _ORDERS)
def test_steps_are_those_of_the_function(order, tmp_path):
    """Six steps, and one of a fork that parted in between."""
    model = onnx.parser.parse_model(_MODEL.replace("BODY", _ORDERS[order]))
    function = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    built = hetero_tvm.build_model(hetero_tvm.optimize_model(hetero_tvm.import_model(model)))
    random = np.random.default_rng(0)

    def one_step(session, states):
        x = random.standard_normal((2, 4)).astype(np.float32)
        at, bt = (random.permutation(8)[:2].reshape(2, 1) for _ in range(2))
        *want, a, b = function.run(
            None, {"x": x, "at": at, "bt": bt, "a_cache": states[0], "b_cache": states[1]}
        )
        for got, right in zip(session(x, at, bt), want, strict=True):
            np.testing.assert_allclose(got, right, rtol=1e-6, atol=1e-6)
        return a, b

    session = hetero_tvm.load(built.export(tmp_path / "model")).session()
    states = (np.zeros((8, 4), np.float32),) * 2
    for step in range(6):
        states = one_step(session, states)
        if step == 2:
            fork, kept = session.fork(), states
    one_step(fork, kept)
