"""``optimize_model``: options are refused by name, and the IR of each pass can be written."""

import copy
import pickle

import numpy as np
import pytest

from hetero_tvm import Span
from hetero_tvm.api import build_model, import_model, optimize_model
from hetero_tvm.errors import BuildError, TargetError, UsageError
from hetero_tvm.relax_passes.rewriting.rule import GraphPass
from hetero_tvm.targets.cpu.target import CpuTarget
from tests.frontend.onnx.helpers import add_weight, text_model
from tests.relax_passes.graphs import contracts


@pytest.fixture(scope="module")
def model():
    return import_model("zoo:minilm-l6-tiny")


def test_unknown_fusions_are_all_named(model):
    with pytest.raises(UsageError, match="no fusions called nonsense, other") as caught:
        optimize_model(model, disable=["other", "nonsense", "attention"])
    assert "attention" in caught.value.hint


def test_a_fusion_that_is_switched_off_does_not_fire(model):
    assert "attention" in optimize_model(model).report.fusions
    assert "attention" not in optimize_model(model, disable=["attention"]).report.fusions


def test_unknown_targets_and_precisions_are_refused(model):
    with pytest.raises(TargetError, match="there is no target 'tpu'"):
        optimize_model(model, "tpu")
    with pytest.raises(UsageError, match="--precision int4 is not available for target cuda"):
        optimize_model(model, "cuda:sm_80", precision="int4")


def test_the_ir_after_each_pass_is_written_in_order(model, tmp_path):
    optimize_model(model, dump_ir=tmp_path / "ir")
    names = sorted(path.name for path in (tmp_path / "ir").iterdir())
    assert [name[:3] for name in names] == [f"{index:03}" for index in range(len(names))]
    assert any("attention" in name for name in names)
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write") as caught:
        optimize_model(model, dump_ir=tmp_path / "file")
    assert "--dump-ir" in caught.value.hint


def test_a_target_of_several_devices_has_one_model_for_each(model):
    optimized = optimize_model(model, "cuda:sm_80,sm_90")
    variants = optimized.variants()
    assert [variant.machine.mcpu for variant in variants] == ["sm_80", "sm_90"]
    assert all(variant.module is optimized.module for variant in variants)
    single = optimize_model(model, "cuda:sm_80")
    assert single.variants() == (single,)


def test_a_pass_that_fails_is_an_error_of_ours(model):
    class Broken(CpuTarget):
        @property
        def fusions(self):
            class Pass(GraphPass):
                name = "broken"

                def run(self, graph, report):
                    raise ValueError("first line\n  the cause  \n")

            return (Pass(),)

    with pytest.raises(BuildError, match="optimizing minilm-l6-tiny for cpu failed: the cause") as caught:
        optimize_model(model, Broken())
    assert "--dump-ir" in caught.value.hint and isinstance(caught.value.__cause__, ValueError)


def test_fusions_are_switched_off_by_name(model):
    with pytest.raises(UsageError, match="disable is a list of names of fusions, not int"):
        optimize_model(model, disable=[3])


@pytest.mark.thorough
def test_small_images_of_a_range_do_not_decide_layouts():
    """Alone between plain neighbours the first convolution would be converted for large images only, and the
    second one would stay plain for its sake."""
    text = """g (float[1,64,h,w] x) => (float[1,128,p,q] z) <int64[8] around = {0,0,1,1,0,0,1,1}> {
      a = Pad <mode = "reflect"> (x, around) y = Conv <strides = [2, 2]> (a, v)
      b = Pad <mode = "reflect"> (y, around) z = Conv (b, u)
    }"""
    model = text_model(text)
    random = np.random.default_rng(0)
    for name, shape in (("v", (128, 64, 3, 3)), ("u", (128, 128, 3, 3))):
        add_weight(model, name, random.standard_normal(shape, dtype=np.float32) / 30)
    sizes = (1, 64, Span(32, 192, 16), Span(32, 160, 16))
    plan = optimize_model(import_model(model, shapes={"x": sizes}), "cpu:znver4")
    modules = [plan.module, *(one.module for one in plan.lengths.others)]
    convolutions = [contracts(module, "conv2d") for module in modules]
    assert {len(found) for found in convolutions} == {2}
    assert {found[1].y_layout for found in convolutions} == {"NCHW16c"}


def test_models_that_hold_tvms_objects_are_neither_copied_nor_pickled(model):
    optimized = optimize_model(model)
    for given in (optimized, build_model(optimized, use_shipped=False)):
        for copied in (copy.deepcopy, pickle.dumps):
            with pytest.raises(UsageError, match="is neither pickled nor copied") as caught:
                copied(given)
            assert "export()" in caught.value.hint
