"""The forms of a CPU: what operators without a design space become, in order."""

from __future__ import annotations

import functools

from hetero_tvm.machines.cpu import CpuModel
from hetero_tvm.relax_passes.canonical.broadcasts import TileAsBroadcast
from hetero_tvm.relax_passes.canonical.rules import CANONICAL
from hetero_tvm.relax_passes.canonical.slopes import SlopesAsProducts
from hetero_tvm.relax_passes.canonical.views import CancelReshapes
from hetero_tvm.relax_passes.forms.arg_extremum import ArgAsExtremum, ArgAsKernel
from hetero_tvm.relax_passes.forms.attention import AttentionAsProducts
from hetero_tvm.relax_passes.forms.conv1d import Conv1dAsConv2d, PixelsAsRows
from hetero_tvm.relax_passes.forms.conv_transpose import ConvTransposeAsPhases
from hetero_tvm.relax_passes.forms.gather import TakeOfKnownPlaces
from hetero_tvm.relax_passes.forms.grid_sample import GridSampleAsKernel
from hetero_tvm.relax_passes.forms.pool import PoolAsPool2d
from hetero_tvm.relax_passes.forms.quantized.quantized_conv1d import QuantConv1dAsConv2d
from hetero_tvm.relax_passes.forms.quantized.quantized_conv3d import QuantConv3dAsConv2d
from hetero_tvm.relax_passes.forms.quantized.quantized_conv_transpose import QuantConvTransposeAsConv2d
from hetero_tvm.relax_passes.forms.quantized.quantized_pool import QuantAverageAsConv2d
from hetero_tvm.relax_passes.forms.resize import ResizeAsKernel, ResizeAsOpenKernel
from hetero_tvm.relax_passes.forms.roi_align import RoiAlignAsKernel
from hetero_tvm.relax_passes.forms.rows_as_images import RowsAsImages
from hetero_tvm.relax_passes.forms.scan import ScanAsKernel
from hetero_tvm.relax_passes.forms.topk import OrderAsKernel, SuppressionAsKernel
from hetero_tvm.relax_passes.forms.volumes.conv3d import Conv3dAsConv2d
from hetero_tvm.relax_passes.forms.volumes.conv_transpose3d import ConvTranspose3dAsConvTranspose2d
from hetero_tvm.relax_passes.forms.volumes.images import VolumesAsImages
from hetero_tvm.relax_passes.forms.volumes.resize import ResizeVolumes
from hetero_tvm.relax_passes.fusions.convolutions.expansions import FuseExpansions
from hetero_tvm.relax_passes.fusions.integers.borders import FoldByteBorders
from hetero_tvm.relax_passes.fusions.pixel_shuffle import FusePixelShuffle
from hetero_tvm.relax_passes.rewriting.fused import Claims
from hetero_tvm.relax_passes.rewriting.rule import GraphPass
from hetero_tvm.schedules.cpu.chains.expand_depthwise import chain_pays
from hetero_tvm.schedules.cpu.images.grid_sample import Sampling, emit_grid_sample
from hetero_tvm.schedules.cpu.images.lone import on_blocks
from hetero_tvm.schedules.cpu.images.resize import emit_resize, neighbours
from hetero_tvm.schedules.cpu.images.roi_align import Bins, emit_roi_align
from hetero_tvm.schedules.cpu.rows.arg_extremum import emit_arg_extremum
from hetero_tvm.schedules.cpu.rows.open_topk import OpenTopkKernel
from hetero_tvm.schedules.cpu.rows.scan import emit_scan
from hetero_tvm.schedules.cpu.rows.suppression import emit_suppression
from hetero_tvm.schedules.cpu.rows.topk import DTYPES as TOPK_DTYPES
from hetero_tvm.schedules.cpu.rows.topk import emit_topk
from hetero_tvm.schedules.cpu.symbolic.resize import emit_open_resize


def forms(claims: Claims, machine: CpuModel, ranges: bool) -> tuple[GraphPass, ...]:
    """Operators that have no design space, in terms of those that have one, or as kernels.

    ``ranges`` : whether extents may be known at run time only.
    """
    return (
        *CANONICAL,  # first: a bias is a constant by then, which the forms take along
        SlopesAsProducts(),  # before convolutions take activations, and layouts what stands between them
        FusePixelShuffle(claims),  # while its reshapes stand beside it
        AttentionAsProducts(),  # which is what the fusion of attention looks for
        ConvTranspose3dAsConvTranspose2d(),  # before that of images, which it leaves
        ConvTransposeAsPhases(claims),  # a convolution per phase: no zeros are multiplied, and it is fast
        Conv3dAsConv2d(lambda op: claims(on_blocks(op, machine))),  # depth is summed up as channels are
        VolumesAsImages(),  # what stands between them and would keep volumes; before its pooling takes forms
        ResizeVolumes(),  # of the others; before images are resized
        PoolAsPool2d(),  # likewise rows and volumes that are pooled
        Conv1dAsConv2d(computed=True),  # rows are images of one row; after transposed ones, also of rows
        PixelsAsRows(),  # of one pixel each; after it, as rows may be of one element
        ArgAsKernel(functools.partial(emit_arg_extremum, machine, ranges=ranges)),  # one pass
        ArgAsExtremum(),  # reductions of numbers run in vectors, and know NaN
        RowsAsImages(),  # what stands between those: it follows their layout, or joins their epilogues
        CancelReshapes(),  # between two of them
        OrderAsKernel(
            functools.partial(emit_topk, machine=machine, kernel=OpenTopkKernel if ranges else None),
            TOPK_DTYPES,
        ),  # vectors skip what is not among the best
        SuppressionAsKernel(functools.partial(emit_suppression, machine)),  # no operators express it
        ResizeAsOpenKernel(functools.partial(emit_open_resize, machine))  # of any size
        if ranges
        else ResizeAsKernel(
            neighbours, functools.partial(emit_resize, machine)
        ),  # weights are worked out once
        GridSampleAsKernel(lambda *form: emit_grid_sample(machine, Sampling(*form), ranges)),  # weights once
        RoiAlignAsKernel(
            lambda *form: emit_roi_align(machine, Bins(*form), ranges)
        ),  # rows, then columns of a bin
        *((TileAsBroadcast(),) if ranges else ()),  # of known extents it is as fast, and fuses
        TakeOfKnownPlaces(),  # no division per element
        ScanAsKernel(
            functools.partial(emit_scan, machine, ranges=ranges), reverses=True
        ),  # the runtime's scan goes element by element
    )


def chains(claims: Claims, machine: CpuModel) -> tuple[GraphPass, ...]:
    """Passes that make one operator of convolutions one after another."""
    return (FuseExpansions(claims, functools.partial(chain_pays, machine=machine)),)


def quantized_forms(claims: Claims) -> tuple[GraphPass, ...]:
    """Convolutions of bytes in terms of those of images, which the fusion of quantised operators takes."""
    return (
        QuantAverageAsConv2d(),  # means between two quantisers
        QuantConv3dAsConv2d(),  # slices of volumes are images
        QuantConv1dAsConv2d(),  # rows are images of one row
        QuantConvTransposeAsConv2d(claims),  # a transposed one is a convolution of phases
        FoldByteBorders(),  # last: of images
    )
