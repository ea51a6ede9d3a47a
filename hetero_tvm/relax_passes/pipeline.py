"""The two pass pipelines as ordered lists, each entry with the reason for its place."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from hetero_tvm.host.tvm import IRModule, relax, tvm
from hetero_tvm.memory.model_plan import MemoryPlan
from hetero_tvm.relax_passes.canonical.constants import ReleaseConstants
from hetero_tvm.relax_passes.canonical.rules import CANONICAL
from hetero_tvm.relax_passes.canonical.slices import JoinSlices, SliceOfPieces
from hetero_tvm.relax_passes.canonical.views import MergeReshapes
from hetero_tvm.relax_passes.forms import pad, roi_align
from hetero_tvm.relax_passes.fusions.add_norm import FuseAddNorm
from hetero_tvm.relax_passes.fusions.anchors import anchors_of, close
from hetero_tvm.relax_passes.fusions.attention.attention import FuseAttention
from hetero_tvm.relax_passes.fusions.attention.qkv import MergeQkv
from hetero_tvm.relax_passes.fusions.attention.rope import FuseRope
from hetero_tvm.relax_passes.fusions.batch_matmul import FuseBatchMatmul
from hetero_tvm.relax_passes.fusions.convolutions.added import MergeAddedConvolutions
from hetero_tvm.relax_passes.fusions.convolutions.conv2d import (
    BatchNormAsScale,
    FoldBatchNorm,
    FoldPad,
    FuseConv2d,
)
from hetero_tvm.relax_passes.fusions.convolutions.outside import DropOutsideTaps
from hetero_tvm.relax_passes.fusions.convolutions.scales import FoldConvInputScales, FoldConvOutputScales
from hetero_tvm.relax_passes.fusions.embedding_norm import FuseEmbeddingNorm
from hetero_tvm.relax_passes.fusions.fold_scales import FoldInputScales, FoldOutputScales
from hetero_tvm.relax_passes.fusions.gated_matmul import FuseGatedMatmul
from hetero_tvm.relax_passes.fusions.gelu import FuseGelu
from hetero_tvm.relax_passes.fusions.group_norm import FuseGroupNorm
from hetero_tvm.relax_passes.fusions.integers.attention import FuseQuantBatchMatmul, FuseQuantSoftmax
from hetero_tvm.relax_passes.fusions.matmul import FuseMatmul
from hetero_tvm.relax_passes.fusions.normalization import FuseLayerNorm, FuseRmsNorm
from hetero_tvm.relax_passes.fusions.normalization_layout import NormAxis, NormRows
from hetero_tvm.relax_passes.fusions.silu import FuseHardSwish, FuseQuickGelu, FuseSilu
from hetero_tvm.relax_passes.fusions.softmax import FuseSoftmax
from hetero_tvm.relax_passes.rewriting.fused import Claims
from hetero_tvm.relax_passes.rewriting.graph import Graph, Sources
from hetero_tvm.relax_passes.rewriting.rule import GraphPass, Report, run_rules
from hetero_tvm.relax_passes.rewriting.sources import after_fusion
from hetero_tvm.relax_passes.storage.concatenation import part_trees
from hetero_tvm.relax_passes.storage.plan_memory import plan_memory
from hetero_tvm.relax_passes.storage.reshaped_results import view_reshapes
from hetero_tvm.relax_passes.storage.rounds import closed, gathered
from hetero_tvm.relax_passes.storage.written_over import write_over


def fusions(claims: Claims) -> tuple[GraphPass, ...]:
    """The rules, in order, for a target that has the kernels that it ``claims``."""
    return (
        *CANONICAL,  # one spelling for what exporters write in many
        FuseGelu(),  # early: an activation as one operator is what the matmul epilogue looks for
        FuseSilu(),  # likewise, and what the gate of an MLP is
        FuseQuickGelu(),  # likewise
        FuseHardSwish(),  # likewise
        FuseGroupNorm(),  # before the layer norm, which a group between two reshapes looks like
        FuseLayerNorm(claims),  # before what looks for norms: embeddings, projections, additions
        FuseRmsNorm(claims),  # likewise; neither matches the statistics of the other
        NormAxis(claims),  # right after the norms, before anything else reads the transposed image
        FuseEmbeddingNorm(),  # after the norms, which it looks for
        FuseRope(),  # before attention, which reads queries and keys where their last operator leaves them
        FuseAttention(),  # before the epilogues, which would swallow the products that it starts from
        NormRows(claims),  # before projections are merged, which lets it read the merged result
        MergeQkv(claims),  # after attention: only then is it known which projections belong together
        FoldBatchNorm(),  # before the epilogue of the convolution, of which it leaves a bias
        FoldPad(),  # before the epilogue makes a kernel of the convolution
        DropOutsideTaps(),  # after it: all zeros around are the convolution's own now
        FoldConvOutputScales(),  # after batch norms, whose factors go the same way
        FoldConvInputScales(),  # then: a factor between two convolutions goes to the first
        MergeAddedConvolutions(),  # after these: terms of a sum are plain convolutions now
        BatchNormAsScale(),  # of what these have left
        FuseConv2d(claims),  # after these: weights, bias and padding are final now
        FoldOutputScales(),  # after attention, which has taken its scales for free
        FoldInputScales(),  # then: a factor between two products goes to the first
        FuseGatedMatmul(),  # before the epilogue as well: it takes two products at once
        FuseMatmul(claims),  # after everything that forms activations and takes products away
        FuseQuantBatchMatmul(claims),  # after attention: products that quantisers have kept apart
        FuseBatchMatmul(claims),  # what attention and the epilogues have left: no weight, no softmax
        FuseAddNorm(claims),  # after the epilogues, which add residuals for free
        ReleaseConstants(),  # after all that computes with constants
        MergeReshapes(),  # when no rule needs the shapes in between any more
        JoinSlices(),  # when no rule looks for the halves of what is rotated or gated any more
        SliceOfPieces(),  # likewise, of what is one view now
        FuseQuantSoftmax(claims),  # before the softmax of floats
        FuseSoftmax(claims),  # last: attention has taken its softmax by now
    )


FUSIONS = fusions(lambda op: False)
"""The rules for a target that has the common forms alone."""


Observer = Callable[[str, Callable[[], IRModule]], None]


def optimize(
    module: IRModule,
    sources: Sources,
    rules: Sequence[GraphPass] = FUSIONS,
    disabled: frozenset[str] = frozenset(),
    observe: Observer = lambda name, module: None,
    views: bool = True,
) -> tuple[IRModule, Sources, Report]:
    """Fuse and lower to calls of kernels: fused operators, and generic TensorIR for the rest.

    Parameters
    ----------
    module : Relax with static shapes; the function ``main``.
    sources : source node names by variable name.
    rules : the passes, in order.
    disabled : names of fusions that are switched off.
    observe : called after each pass with its name and a function that gives the module it left.
    views : whether fused operators become views where they only reshape at these sizes.

    Returns
    -------
    The module, in which ``main`` only calls PrimFuncs and views; source names by variable; what fired.
    """
    report = Report()
    observe("import", lambda: module)
    graph = Graph(module, sources=sources, disabled=disabled)
    anchors = anchors_of(graph)
    for rule in rules:
        start = time.perf_counter()
        run_rules(graph, [rule], report, disabled)
        report.seconds[rule.name] = report.seconds.get(rule.name, 0.0) + time.perf_counter() - start
        if rule.name not in disabled:
            observe(rule.name, lambda: graph.rebuild()[0])
    close(anchors, report)
    module, names = graph.rebuild()
    start = time.perf_counter()
    # Sort and scan have no TensorIR: the runtime library has them.  This pass asks for a target.
    with tvm.target.Target.current(allow_none=True) or tvm.target.Target("llvm"):
        module = relax.backend.DispatchSortScan()(module)
    module = tvm.transform.Sequential(
        [
            relax.transform.DecomposeOpsForInference(),
            # Every operator that no rule claimed becomes TensorIR.
            relax.transform.LegalizeOps(pad.LEGALIZERS | roi_align.LEGALIZERS),
        ]
    )(module)
    module = view_reshapes(module, views)
    # Fused operators are marked opaque already.
    before = module = part_trees(relax.transform.AnnotateTIROpPattern()(module))
    module = relax.transform.FuseOps()(module)  # what is left: elementwise, broadcast and injective chains
    names = after_fusion(before, module, names)
    module = tvm.transform.Sequential([relax.transform.FuseTIR(), relax.transform.DeadCodeElimination()])(
        module
    )
    report.seconds["lower"] = time.perf_counter() - start
    observe("lower", lambda: module)
    return module, names, report


def lower(
    module: IRModule,
    sources: Sources | None = None,
    in_place: bool = True,
    device_passes: Sequence[tvm.transform.Pass] = (),
) -> tuple[IRModule, MemoryPlan]:
    """Lower scheduled kernels to what the virtual machine runs: explicit allocation, planned memory.

    ``in_place`` lets kernels overwrite an input where that is safe for threads of a CPU;
    ``device_passes`` come after memory planning, while allocations are still explicit.

    Returns the module and the plan of its memory, in which ``sources`` name the tensors' nodes.
    """
    explicit = tvm.transform.Sequential(
        [
            relax.transform.ToNonDataflow(),
            relax.transform.RemovePurityChecking(),
            relax.transform.CallTIRRewrite(),  # call_tir -> allocation and a call that writes to it
            write_over,
        ]
    )(module)
    explicit = gathered(explicit)  # before memory is planned: what loops read must live until their end
    planned, memory = plan_memory(explicit, sources, share=in_place)  # one arena, in place where safe
    planned = closed(planned)
    lowered = tvm.transform.Sequential(
        [
            *device_passes,
            relax.transform.LowerAllocTensor(),  # results, which are outside of the arena
            relax.transform.KillAfterLastUse(),
            relax.transform.LowerRuntimeBuiltin(),
            relax.transform.ComputePrimValue(),
            relax.transform.VMShapeLower(),
            relax.transform.AttachGlobalSymbol(),
        ]
    )(planned)
    return lowered, memory
