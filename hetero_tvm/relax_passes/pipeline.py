"""The two pass pipelines as ordered lists, each entry with the reason for its place."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from hetero_tvm._bootstrap import import_tvm

tvm = import_tvm()

from tvm import relax  # noqa: E402

from hetero_tvm.relax_passes.attention import FuseAttention, MergeQkv  # noqa: E402
from hetero_tvm.relax_passes.gelu import Gelu  # noqa: E402
from hetero_tvm.relax_passes.graph import Graph  # noqa: E402
from hetero_tvm.relax_passes.layer_norm import LayerNorm, RmsNorm  # noqa: E402
from hetero_tvm.relax_passes.matmul_epilogue import MatmulEpilogue  # noqa: E402
from hetero_tvm.relax_passes.rows import ClaimNorm, ClaimSoftmax  # noqa: E402
from hetero_tvm.relax_passes.rule import Report, Rule, run_rules  # noqa: E402
from hetero_tvm.relax_passes.sources import after_fusion  # noqa: E402

FUSIONS: tuple[Rule, ...] = (
    Gelu(),  # first: an activation as one operator is what the matmul epilogue looks for
    LayerNorm(),  # before RMS: it is the more specific form of the same anchor
    RmsNorm(),
    FuseAttention(),  # before the epilogues, which would swallow the products that it starts from
    MergeQkv(),  # after attention: only then is it known which projections belong together
    MatmulEpilogue(),  # after everything that forms activations and takes products away
    ClaimNorm(),  # row kernels last: attention has taken its softmax by now
    ClaimSoftmax(),
)


def optimize(
    module: Any, sources: Mapping[str, tuple[str, ...]], rules: Sequence[Rule] = FUSIONS, disabled: frozenset[str] = frozenset()
) -> tuple[Any, dict[str, tuple[str, ...]], Report]:
    """Fuse and lower to calls of kernels: fused operators, and generic TensorIR for the rest.

    Parameters
    ----------
    module : Relax with static shapes; the function ``main``.
    sources : source node names by variable name.
    disabled : names of fusions that are switched off.

    Returns
    -------
    The module, in which ``main`` only calls PrimFuncs and views; source names by variable; what fired.
    """
    report = Report()
    graph = Graph(module, sources=sources)
    for rule in rules:
        start = time.perf_counter()
        run_rules(graph, [rule], report, disabled)
        report.seconds[rule.name] = time.perf_counter() - start
    module, names = graph.rebuild()
    start = time.perf_counter()
    module = tvm.transform.Sequential(
        [
            relax.backend.DispatchSortScan(),  # sort and scan have no TensorIR: the runtime library has them
            relax.transform.DecomposeOpsForInference(),
            relax.transform.LegalizeOps(),  # every operator that no rule claimed becomes TensorIR
            relax.transform.RewriteDataflowReshape(),  # reshapes of whole tensors become views
            relax.transform.AnnotateTIROpPattern(),  # fused operators are marked opaque already
            relax.transform.FuseOps(),  # what is left are chains of elementwise, broadcast and injective kernels
        ]
    )(module)
    names = after_fusion(module, names)
    module = tvm.transform.Sequential([relax.transform.FuseTIR(), relax.transform.DeadCodeElimination()])(module)
    report.seconds["lower"] = time.perf_counter() - start
    return module, names, report


def lower(module: Any) -> Any:
    """From scheduled kernels to what the virtual machine runs: explicit allocation, planned memory."""
    return tvm.transform.Sequential(
        [
            relax.transform.ToNonDataflow(),
            relax.transform.RemovePurityChecking(),
            relax.transform.CallTIRRewrite(),  # call_tir -> allocation and a call that writes to it
            relax.transform.StaticPlanBlockMemory(),  # reuse of storage over live ranges
            relax.transform.LowerAllocTensor(),
            relax.transform.KillAfterLastUse(),
            relax.transform.LowerRuntimeBuiltin(),
            relax.transform.ComputePrimValue(),
            relax.transform.VMShapeLower(),
            relax.transform.AttachGlobalSymbol(),
        ]
    )(module)
