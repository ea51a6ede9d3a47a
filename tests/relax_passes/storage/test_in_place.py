"""Kernels that write over an operand: only where nobody sees it, and with the right numbers."""

from __future__ import annotations

import numpy as np

from hetero_tvm.api import build_model, import_model, optimize_model
from hetero_tvm.host.tvm import relax, tvm
from hetero_tvm.relax_passes.storage.plan_memory import plan_memory
from tests.frontend.onnx.helpers import add_weight, text_model
from tests.relax_passes.graphs import constant, module, op, weights
from tests.relax_passes.storage.lowered import legal, planned, tensors
from tests.relax_passes.storage.test_live_ranges import explicit


def test_inputs_constants_and_what_is_read_later_stay_as_they_are():
    weight = weights(4, 16)

    def body(emit, x):
        a = emit(op.add(x, constant(weight)))  # x is the user's, the weight a constant
        b = emit(op.exp(a))
        c = emit(op.multiply(a, b))
        return emit(op.subtract(c, x))

    vm, plan = planned(module({"x": (4, 16)}, body))
    assert len(plan.in_place) == 2  # c over b (or a), and the result over c: never over x
    x = weights(4, 16, seed=3)
    (argument,) = tensors(x)
    for _ in range(2):  # a constant that was written over would show in the second call
        a = (x + weight).astype("float64")
        np.testing.assert_allclose(vm["main"](argument).numpy(), a * np.exp(a) - x, rtol=1e-5, atol=1e-5)
        np.testing.assert_array_equal(argument.numpy(), x)


def test_a_view_keeps_its_memory_from_being_written_over():
    def body(emit, x):
        a = emit(op.exp(x))
        view = emit(op.reshape(a, (64,)))
        b = emit(op.negative(a))  # a dies here but for its view
        c = emit(op.reshape(b, (64,)))
        return emit(op.add(view, c))

    vm, _ = planned(module({"x": (4, 16)}, body))
    x = weights(4, 16)
    np.testing.assert_allclose(vm["main"](*tensors(x)).numpy(), np.zeros(64), atol=1e-6)


def test_the_same_tensor_twice():
    vm, plan = planned(module({"x": (4, 16)}, lambda emit, x: emit(op.multiply(*[emit(op.exp(x))] * 2))))
    assert plan.peak == 0 and len(plan.in_place) == 1  # in the memory of the result
    x = weights(4, 16)
    np.testing.assert_allclose(vm["main"](*tensors(x)).numpy(), np.exp(x) ** 2, rtol=1e-5)


def test_no_sharing_when_asked():
    mod = legal(module({"x": (4, 16)}, lambda emit, x: emit(op.exp(emit(op.negative(emit(op.exp(x))))))))
    _, apart = plan_memory(explicit(mod), share=False)
    _, shared = plan_memory(explicit(mod))
    assert not apart.in_place and len(shared.in_place) == 2
    assert apart.peak == 512 and shared.peak == 0


def residual_chain(layers):
    """Norms of sums that the next layer needs as well; ``layers`` of them, each kernel with two results."""
    model = text_model(
        "g (float[2, 5, 24] x, float[2, 5, 24] r) => (float[2, 5, 24] y, float[2, 5, 24] s) {\n"
        "  a0 = Exp(x)\n"
        + "\n".join(
            f"  b{i} = Sin(a{i})\n  s{i} = Add(b{i}, {f's{i - 1}' if i else 'r'})\n"
            f"  n{i} = LayerNormalization<axis=-1>(s{i}, scale)\n  a{i + 1} = Cos(n{i})"
            for i in range(layers)
        )
        + f"\n  y = Identity(a{layers})\n  s = Identity(s{layers - 1})\n}}"
    )
    return add_weight(model, "scale", weights(24))


def test_kernels_with_two_results(tmp_path):
    """Sum and norm both lie in the arena; either takes the place of an operand that nobody needs again."""
    built = build_model(
        optimize_model(import_model(residual_chain(3))), logs=tmp_path / "logs", use_shipped=False
    )
    assert (
        sum(len(task.calls) for task in built.optimized.tasks if task.name.startswith("add_layer_norm")) == 3
    )
    plan = built.memory
    plan.verify()
    assert plan.peak <= 1.01 * plan.lower_bound and plan.peak <= plan.static_plan
    assert {task.name for task in built.optimized.tasks if task.op is not None} == {"add_layer_norm_10x24"}
    assert not [why for why in plan.refused if why.startswith("add_layer_norm")], plan.refused
    # The first sum cannot lie over r, which is the user's; of the later sums each lies over the one before.
    assert len(plan.in_place) >= 6

    vm = relax.VirtualMachine(built.executable, tvm.cpu())
    x, r = weights(2, 5, 24, seed=1), weights(2, 5, 24, seed=2)
    a, s = np.exp(x.astype("float64")), r.astype("float64")
    for _ in range(3):
        s = np.sin(a) + s
        centered = s - s.mean(-1, keepdims=True)
        norm = centered / np.sqrt((centered**2).mean(-1, keepdims=True) + 1e-5) * weights(24)
        a = np.cos(norm)
    arguments = tensors(x, r)
    for _ in range(2):
        results = [result.numpy() for result in vm["main"](*arguments)]
        np.testing.assert_allclose(results[0], a, atol=1e-4)  # three norms of float32 on top of one another
        np.testing.assert_allclose(results[1], s, atol=1e-4)
        np.testing.assert_array_equal(arguments[1].numpy(), r)
