"""The campaign of few bits: a quick selection, and that its judge sees one step."""

import numpy as np
import pytest

from tests.campaign.few_bits.command import case_of, fault, judge
from tests.campaign.few_bits.forms import FORMS
from tests.campaign.graphs.judge import PASSED, by_onnxruntime


@pytest.mark.thorough
@pytest.mark.parametrize("seed", range(2 * len(FORMS)))
def test_quick_selection(seed):
    verdict = judge(seed)
    assert verdict.kind == PASSED, verdict


@pytest.mark.parametrize("form", range(len(FORMS)), ids=FORMS)
def test_the_definition_is_onnx_runtimes_and_two_steps_are_seen(form):
    for seed in range(form, 60, len(FORMS)):
        _, case = case_of(seed)
        if case.precision is None:
            result = by_onnxruntime(case.model(), case.draws[0])[0]
        else:
            result = case.exact(case.draws[0])[0].astype(np.float32)
        assert fault(case, case.draws[0], result) is None
        expected, room = case.exact(case.draws[0])
        at = np.unravel_index(room.argmin(), room.shape)
        off = result.astype(np.float64)
        off[at] += 2 * room[at] + 1.1 if expected[at] < 100 else -2 * room[at] - 1.1
        assert fault(case, case.draws[0], off)
