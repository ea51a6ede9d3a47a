"""Programs whose sizes JAX leaves open, at fixed sizes and at open ones, beside JAX."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.exhaustive  # by default in a process of their own: test_apart.py

import jax.numpy as jnp  # noqa: E402
from jax import export  # noqa: E402

from hetero_tvm import Span  # noqa: E402
from hetero_tvm.api import build_model, import_model, optimize_model  # noqa: E402
from hetero_tvm.errors import ModelError, ShapeError  # noqa: E402
from hetero_tvm.frontend.stablehlo.importer import import_stablehlo, open_stablehlo  # noqa: E402


def function(x, y):
    return jnp.concatenate([x, x], 0) + y, x.mean(0), jax.nn.softmax(x) @ x.T


def program(*shapes, of=function, constraints=()):
    scope = export.SymbolicScope(constraints)
    shapes = [export.symbolic_shape(shape, scope=scope) for shape in shapes]
    return export.export(jax.jit(of))(*[jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes])


@pytest.fixture(scope="module")
def opened():
    return program("b,4", "4")


def test_names_of_sizes_are_read_from_every_form(opened, tmp_path):
    (tmp_path / "text.mlir").write_text(opened.mlir_module())
    (tmp_path / "bytes.mlirbc").write_bytes(opened.mlir_module_serialized)
    (tmp_path / "whole.stablehlo").write_bytes(opened.serialize())
    for source in (opened, *tmp_path.iterdir()):
        declared, _ = open_stablehlo(source)
        assert declared == {"arg0": ["b", 4], "arg1": [4]}
    two = program("a,3,b", "b", "2*a", of=lambda x, y, z: (x * y, z))
    assert open_stablehlo(two)[0] == {"arg0": ["a", 3, "b"], "arg1": ["b"], "arg2": [None]}


@pytest.mark.parametrize("shapes", [{"b": (3,)}, {"arg0": (3, 4)}, {"b": (Span(2, 5),)}])
def test_sizes_are_given_by_name_by_input_and_as_ranges(opened, shapes):
    built = build_model(optimize_model(import_model(opened, shapes=shapes)))
    built.check()
    for rows in (3, 2, 5) if any(isinstance(size, Span) for size in shapes.get("b", ())) else (3,):
        x = np.random.default_rng(rows).normal(size=(rows, 4)).astype(np.float32)
        y = np.arange(4, dtype=np.float32)
        for ours, theirs in zip(built.run({"arg0": x, "arg1": y}), function(x, y), strict=True):
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_sizes_that_are_missing_or_do_not_fit_are_refused(opened):
    with pytest.raises(ShapeError, match="arg0 is bx4: its open sizes are not given"):
        import_stablehlo(opened)
    with pytest.raises(ShapeError, match="arg0 is bx4, not 3x5"):
        import_stablehlo(opened, shapes={"arg0": (3, 5)})
    with pytest.raises(ShapeError, match=r"no input 'z'(.|\n)*symbolic_shape"):
        import_stablehlo(program("2,4", "4"), shapes={"z": (3,)})
    least = program("b,4", of=lambda x: x * 2, constraints=("b >= 3",))
    with pytest.raises(ShapeError, match="does not take these sizes"):
        import_stablehlo(least, shapes={"arg0": (2, 4)})


@pytest.mark.parametrize("name", ["model.bin", "model", "model.jax"])
def test_what_jax_serializes_is_known_by_its_content(tmp_path, name, opened):
    (tmp_path / name).write_bytes(opened.serialize())
    for shapes in ({"arg0": (3, 4)}, {"arg0": (Span(1, 8), 4)}):
        model = import_model(tmp_path / name, shapes=shapes)
        x, y = np.random.default_rng(0).standard_normal((2, 3, 4)).astype("float32")
        found = build_model(optimize_model(model)).run({"arg0": x, "arg1": y[0]})
        for one, wanted in zip(found, function(x, y[0]), strict=True):
            np.testing.assert_allclose(one, wanted, rtol=1e-5, atol=1e-5)
    whole = bytes(opened.serialize())
    (tmp_path / name).write_bytes(whole[: whole.index(b"ML\xefR") + 200])
    with pytest.raises(ModelError, match="no StableHLO program"):
        import_model(tmp_path / name, shapes={"arg0": (3, 4)})
