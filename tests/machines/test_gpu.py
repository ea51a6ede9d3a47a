"""Models of GPUs: architectures by name, and their JSON form."""

import pytest

from hetero_tvm.errors import TargetError
from hetero_tvm.machines.gpu import MODELS, GpuModel, model_named


def test_model_survives_json():
    for model in MODELS.values():
        assert GpuModel.from_json(model.to_json()) == model


def test_architectures_by_name():
    assert model_named("sm_90a").capability == 90 and model_named("sm_120").capability == 120
    with pytest.raises(TargetError, match="no architecture 'sm_70'") as caught:
        model_named("sm_70")
    assert "sm_80" in caught.value.hint


def test_blocks_fit_their_multiprocessor():
    for model in MODELS.values():
        assert model.shared_per_block < model.shared_per_sm
        assert model.threads_per_sm % model.lanes == 0 and model.codegen_target()["arch"] == model.arch
