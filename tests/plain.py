"""Target of code that tests compile to compute something once: as a judge, or to see what a graph means.

LLVM's optimiser takes most of the time of such a test, and has nothing to do with what it asks.  Tests of
kernels, of code generation and of whole builds take the targets that users get.
"""

from hetero_tvm.host.tvm import tvm

PLAIN = tvm.target.Target({"kind": "llvm", "mcpu": tvm.target.codegen.llvm_get_system_cpu(), "opt-level": 0})
