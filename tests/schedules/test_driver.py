"""Native functions of kernels: in this process, and in a compiled module."""

import numpy as np

from hetero_tvm.codegen.pipeline import PIPELINE
from hetero_tvm.host.tvm import tvm
from hetero_tvm.schedules.driver import Driver
from hetero_tvm.schedules.emit import Kernel
from tests.schedules.cpu.running import TARGET, compiled

SOURCE = """
extern "C" int %s(float* y, const float* x) {
  for (int i = 0; i < 4; ++i) y[i] = x[i] * SCALE;
  return 0;
}
"""


def driver(tmp_path, name):
    source = tmp_path / f"{name}.cc"
    source.write_text(SOURCE % name)
    return Driver((source,), (name,), ("-DSCALE=3.0f",))


def kernel(name):
    k = Kernel()
    with k:
        x, y = k.argument("x", (4,)), k.argument("y", (4,))
        k.call(name, k.address(y, [0]), k.address(x, [0]))
    return k.function


def test_attached_functions_are_found_by_kernels(tmp_path):
    driver(tmp_path, "hetero_tvm_test_attached").attach()
    (run,) = compiled([(kernel("hetero_tvm_test_attached"), (4,))])
    np.testing.assert_array_equal(run(np.arange(4, dtype="float32")), [0, 3, 6, 9])


def test_a_library_contains_the_functions(tmp_path):
    name = "hetero_tvm_test_linked"
    module = tvm.IRModule({"main": kernel(name).with_attr("global_symbol", "main")})
    module = module.with_attr("external_mods", [driver(tmp_path, name).module()])
    library = tmp_path / "library.so"
    executable = tvm.compile(module, target=TARGET, tir_pipeline=PIPELINE)
    executable.mod.import_module(module.attrs["external_mods"][0])
    executable.export_library(str(library))
    y = tvm.runtime.tensor(np.zeros(4, "float32"))
    tvm.runtime.load_module(str(library))["main"](tvm.runtime.tensor(np.ones(4, "float32")), y)
    np.testing.assert_array_equal(y.numpy(), 3)
