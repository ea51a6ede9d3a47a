"""Reading of StableHLO: what is damaged is refused, whatever its form."""

import numpy as np
import pytest

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.exhaustive  # by default in a process of their own: test_apart.py

from hetero_tvm.errors import ModelError  # noqa: E402
from hetero_tvm.frontend.stablehlo import load  # noqa: E402
from hetero_tvm.frontend.stablehlo.load import read_program  # noqa: E402


@pytest.fixture(scope="module")
def program():
    shape = jax.ShapeDtypeStruct((3, 4), np.float32)
    return jax.export.export(jax.jit(lambda x: jax.nn.softmax(x) @ x.T))(shape)


def test_text_bytes_and_objects_are_the_same_program(program, tmp_path):
    found = {len(read_program(program).body.operations)}
    text = program.mlir_module().encode()
    for name, content in (("a.mlir", text), ("a.mlirbc", program.mlir_module_serialized)):
        (tmp_path / name).write_bytes(content)
        found.add(len(read_program(tmp_path / name).body.operations))
    assert found == {1}


@pytest.mark.parametrize("seed", range(12))
def test_damaged_bytes_are_an_error_or_a_program(program, tmp_path, seed):
    rng = np.random.default_rng(seed)
    data = bytearray(program.mlir_module_serialized)
    for place in rng.integers(0, len(data), rng.integers(1, 4)):
        data[place] = rng.integers(0, 256)
    if seed % 3 == 0:
        data = data[: rng.integers(0, len(data))]
    path = tmp_path / "damaged.mlirbc"
    path.write_bytes(data)
    try:
        read_program(path)
    except ModelError as error:
        assert "damaged.mlirbc" in str(error)


def test_refused_bytecode_whose_reader_dies(program, tmp_path, monkeypatch):
    path, reader = tmp_path / "deadly.mlirbc", tmp_path / "reader.py"
    path.write_bytes(program.mlir_module_serialized)
    reader.write_text("import os\nos.abort()\n")
    monkeypatch.setattr(load.parse, "__file__", str(reader))
    with pytest.raises(ModelError, match=r"deadly\.mlirbc .* ends by signal 6"):
        read_program(path)
