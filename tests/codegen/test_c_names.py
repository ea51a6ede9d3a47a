"""Names of a model's nodes as C identifiers: all valid, all different, nothing else changed."""

import re

from hetero_tvm.codegen.c_names import with_c_names
from hetero_tvm.host.tvm import structural_equal, te, tvm, tvm_ffi

NAMES = ("/layer.0/fc", "/layer/0/fc", "layer_0_fc", "3d", "x:0", "plain")


def copy(names):
    """One copy from a buffer of each name to another."""
    inputs = [te.placeholder((4,), name=name) for name in names]
    return te.create_prim_func([*inputs, te.compute((4,), lambda i: sum(x[i] for x in inputs), name="y.z")])


def variables(function):
    found = []
    tvm_ffi.structural_walk(function, (tvm.ir.Var, found.append))
    return {var.name for var in found}


def test_all_names_are_identifiers_and_differ():
    before, after = copy(NAMES), None
    assert set(NAMES) <= variables(before), "TVM keeps the names that it is given"
    after = with_c_names(before)
    assert all(re.fullmatch(r"[A-Za-z_]\w*", name) for name in variables(after))
    assert len({str(p.name) for p in after.params}) == len(NAMES) + 1
    assert structural_equal(after, before, map_free_vars=True)


def test_good_names_stay():
    names = {str(p.name) for p in with_c_names(copy(NAMES)).params}
    assert {"layer_0_fc", "plain"} <= names and any("layer_0_fc" in n and n != "layer_0_fc" for n in names)
