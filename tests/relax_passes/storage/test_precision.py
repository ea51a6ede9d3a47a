"""Half precision: what is converted, what is cast, and what stays."""

import numpy as np
import pytest

from hetero_tvm.api import import_model, optimize_model
from hetero_tvm.errors import UsageError
from hetero_tvm.relax_passes.rewriting.fused import contract_of, is_call_tir
from tests.frontend.onnx.helpers import add_weight, text_model


def calls(plan):
    """(name of the kernel, its contract, dtype of the first result) for each call of ``main``, in order."""
    found = []
    for block in plan.module["main"].body.blocks:
        for binding in block.bindings:
            if is_call_tir(binding.value):
                kernel = binding.value.args[0]
                contract = contract_of(plan.module[kernel])
                first = getattr(binding.var.ty, "fields", [binding.var.ty])[0]
                found.append((kernel.name_hint, contract, str(first.dtype)))
    return found


def two_products():
    model = text_model(
        "agraph (float[4, 32] x) => (float[4, 32] y) { a = MatMul(x, w) b = Relu(a) y = MatMul(b, v) }"
    )
    for name in "wv":
        add_weight(model, name, np.random.default_rng(0).standard_normal((32, 32)).astype("float32"))
    return import_model(model)


def test_values_stay_narrow_between_two_products():
    plan = optimize_model(two_products(), "cuda:sm_80", precision="f16")
    names = [name.rstrip("0123456789") for name, _, _ in calls(plan)]
    kinds = ["cast" if name.startswith("cast") else "matmul" for name in names]
    assert kinds == ["cast", "matmul", "matmul", "cast"]  # of the input and of the result only
    assert [dtype for _, _, dtype in calls(plan)] == ["float16", "float16", "float16", "float32"]
    assert [str(param.ty.dtype) for param in plan.module["main"].params] == ["float32"]


def test_constants_are_stored_narrow():
    plan = optimize_model(two_products(), "cuda:sm_80", precision="f16")
    text = plan.module.script(show_meta=True)
    products = [op for _, op, _ in calls(plan) if op is not None]
    assert all(op.inputs[1].dtype == "float16" for op in products)
    assert 'R.Tensor((32, 32), dtype="float32")' not in text


@pytest.mark.thorough
def test_every_converted_operator_of_a_model_and_its_sources():
    model = import_model("zoo:llama-160m-tiny")
    wide, narrow = (optimize_model(model, "cuda:sm_80", precision=p) for p in ("f32", "f16"))
    converted = [op for _, op, _ in calls(narrow) if op is not None and hasattr(op, "dtype")]
    assert converted and {op.dtype for op in converted} == {"float16"}
    kinds = lambda plan: sorted(op.kind for _, op, _ in calls(plan) if op is not None)  # noqa: E731
    assert kinds(wide) == kinds(narrow)
    names = lambda plan: {name for task in plan.tasks for call in task.calls for name in call}  # noqa: E731
    assert {name for name in names(wide) if "/" in name} <= names(narrow)


def test_float32_is_the_default_and_leaves_the_graph_alone():
    model = two_products()
    plain, asked = optimize_model(model, "cuda:sm_80"), optimize_model(model, "cuda:sm_80", precision="f32")
    assert [task.key for task in plain.tasks] == [task.key for task in asked.tasks]
    assert {dtype for _, _, dtype in calls(plain)} == {"float32"}


@pytest.mark.parametrize(("target", "precision"), [("cpu", "tf32"), ("cuda:sm_80", "int8")])
def test_precisions_that_a_target_does_not_have(target, precision):
    with pytest.raises(UsageError, match=f"--precision {precision} is not available for target"):
        optimize_model(two_products(), target, precision=precision)


def test_generic_kernels_take_casts_in():
    """Between two products a scaling reads and writes float16, behind views as well."""
    model = text_model(
        """agraph (float[4, 32] x) => (float[4, 32] y, float[4, 32] z, float[4, 3] best) {
            a = MatMul(x, w)
            s = Reshape(a, shape)
            t = Mod <fmod = 1> (s, two)
            r = Reshape(t, back)
            y = MatMul(r, v)
            z = Cos(a)
            k = Constant <value_ints = [3]> ()
            best, u = TopK(a, k)
        }"""
    )
    for name in "wv":
        add_weight(model, name, np.random.default_rng(0).standard_normal((32, 32)).astype("float32"))
    add_weight(model, "two", np.float32(2.0))
    add_weight(model, "shape", np.array([2, 64]))
    add_weight(model, "back", np.array([4, 32]))
    plan = optimize_model(import_model(model), "cuda:sm_80", precision="f16")
    generic = [(name, dtype) for name, op, dtype in calls(plan) if op is None]
    # The input's cast, the remainder; the cosine, two casts, and the choice behind one: order and lookup.
    floats = sorted(dtype for _, dtype in generic if "float" in dtype)
    assert floats == ["float16"] * 2 + ["float32"] * 5
    reads = {
        str(param.dtype) for name, _ in generic if "fused" in name for param in plan.module[name].params[:1]
    }
    assert "float16" in reads and "float32" not in reads
    nodes = {node for task in plan.tasks for call in task.calls for node in call}
    assert len(nodes) >= 4
