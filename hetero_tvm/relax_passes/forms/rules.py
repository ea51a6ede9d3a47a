"""The forms for a target of matrix and vector instructions, without loops over data.

Such a target has plain convolutions, matrix products, shifted sums, comparisons, reductions, and lookups of
rows by one index.  Whatever a model has beyond that becomes these, with the same results.
"""

from __future__ import annotations

from hetero_tvm.relax_passes.forms.arg_extremum import ArgAsExtremum
from hetero_tvm.relax_passes.forms.conv1d import Conv1dAsConv2d
from hetero_tvm.relax_passes.forms.conv_transpose import ConvTransposeAsConv2d, ConvTransposeAsPhases
from hetero_tvm.relax_passes.forms.gather import GatherAsTake
from hetero_tvm.relax_passes.forms.grid_sample import GridSampleAsTake
from hetero_tvm.relax_passes.forms.resize import ResizeAsProducts
from hetero_tvm.relax_passes.forms.scan import RecurrenceAsSteps, ScanAsShifts
from hetero_tvm.relax_passes.forms.scatter import ScatterAsSelection
from hetero_tvm.relax_passes.forms.topk import SuppressionAsKernel, TopkAsExtrema
from hetero_tvm.relax_passes.forms.triangle import TriangleAsMask
from hetero_tvm.relax_passes.rewriting.rule import Rule

# All before the canonical forms, which make slices of lookups at constant places, and before the fusions,
# which take the convolutions and products that these leave.
FORMS: tuple[Rule, ...] = (
    RecurrenceAsSteps(),  # before all that looks at operators
    ConvTransposeAsConv2d(),  # first: it takes the cases in which zeros between pixels cost little
    ConvTransposeAsPhases(),  # the others
    # From here on each has operators of its own, and leaves none of another's: any order will do.
    Conv1dAsConv2d(),
    ScanAsShifts(),
    ArgAsExtremum(),
    GatherAsTake(),
    TriangleAsMask(),
    ResizeAsProducts(),
    GridSampleAsTake(),
    ScatterAsSelection(),
    TopkAsExtrema(),
    SuppressionAsKernel(None),  # refuses: a loop over data that no instruction has
)
