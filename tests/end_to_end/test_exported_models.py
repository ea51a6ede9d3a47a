"""Models of transformers through every exporter: PyTorch's numbers, and exact counts of fusions."""

import contextlib
import io
import logging
import warnings

import numpy as np
import pytest

from hetero_tvm.api import build_model, import_model, optimize_model
from tests.end_to_end.architectures import ARCHITECTURES, EITHER, FURTHER, NAMES, torch

_OPEN = {
    "input_ids": ("batch", "sequence"),
    "attention_mask": ("batch", "sequence"),
    "token_type_ids": ("batch", "sequence"),
    "decoder_input_ids": ("batch", "target_length"),
    "pixel_values": ("batch",),
}


def cases():
    """Every architecture by both ONNX exporters, with the attention of either kind; some as programs."""
    kinds = ("sdpa", "eager")
    for index, name in enumerate(ARCHITECTURES):
        yield name, "torchscript", kinds[index % 2]
        yield name, "dynamo", kinds[1 - index % 2]
    for name in ("bert", "llama", "t5", "swin"):
        yield name, "program", "sdpa"
    for name in FURTHER:
        yield name, "torchscript", "eager"


#: Dimensions left open by the exporter, and given other sizes than were traced.
OPEN = [("bert", "torchscript"), ("gpt2", "dynamo"), ("llama", "program"), ("t5", "dynamo")]

#: Each exporter, each kind of architecture.
DEFAULT = {
    ("bert", "torchscript"),
    ("gpt2", "torchscript"),
    ("vit", "torchscript"),
    ("gemma2", "torchscript"),
    ("t5", "torchscript"),
    ("bert", "dynamo"),
    ("llama", "program"),
}


def selected(cases, default=DEFAULT):
    """Those of ``default`` as they are, the others for the exhaustive selection."""
    return [
        case if case[:2] in default else pytest.param(*case, marks=pytest.mark.exhaustive) for case in cases
    ]


@pytest.mark.thorough
@pytest.mark.parametrize("name, exporter, attention", selected(cases()))
def test_numbers_and_counts(name, exporter, attention, tmp_path):
    architecture = {**ARCHITECTURES, **FURTHER}[name]
    module, inputs = architecture.build(attention)
    model = import_model(export(module, inputs, exporter, tmp_path))
    plan = optimize_model(model)
    assert_fused(architecture, plan.report)
    assert_numbers(build(plan, tmp_path), module, inputs)


@pytest.mark.thorough
@pytest.mark.parametrize("name, exporter", selected(OPEN, {("bert", "torchscript")}))
def test_open_dimensions(name, exporter, tmp_path):
    architecture = ARCHITECTURES[name]
    module, inputs = architecture.build("sdpa")
    source = export(module, inputs, exporter, tmp_path, open_dimensions=True)
    other = {key: torch.cat([tensor, tensor[:1]])[:, :11].contiguous() for key, tensor in inputs.items()}
    names = source.graph_signature.user_inputs if exporter == "program" else list(other)
    shapes = {key: tuple(tensor.shape) for key, tensor in zip(names, other.values(), strict=True)}
    plan = optimize_model(import_model(source, shapes=shapes))
    assert_fused(architecture, plan.report)
    assert_numbers(build(plan, tmp_path), module, other)


def export(module, inputs, exporter, folder, open_dimensions=False):
    """A path, or an exported program."""
    tensors = tuple(inputs.values())
    dims = {key: dict(enumerate(_OPEN[key])) for key in inputs} if open_dimensions else None
    shared = {role: torch.export.Dim(role, min=2, max=60) for role in ("batch", "sequence", "target_length")}
    shapes = (tuple({a: shared[r] for a, r in dims[key].items()} for key in inputs),) if dims else None
    quiet = contextlib.redirect_stdout(io.StringIO())
    path = folder / "model.onnx"
    options = {"input_names": list(inputs)}
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), quiet, torch.no_grad():
            warnings.simplefilter("ignore")
            if exporter == "program":
                return torch.export.export(module, tensors, dynamic_shapes=shapes, strict=False)
            if exporter == "torchscript":
                torch.onnx.export(module, tensors, path, dynamo=False, dynamic_axes=dims, **options)
            else:
                torch.onnx.export(
                    module,
                    tensors,
                    path,
                    dynamo=True,
                    verbose=False,
                    external_data=False,
                    dynamic_shapes=shapes,
                    **options,
                )
    finally:
        logging.disable(logging.NOTSET)
    return path


def build(plan, folder):
    return build_model(plan, logs=folder / "logs", use_shipped=False)


def assert_fused(architecture, report):
    """Exact counts, no near miss, and no anchor of the imported graph outside of a fused operator."""
    checked = [name for name in NAMES if name not in EITHER or name in architecture.counts]
    got = {name: report.fusions.get(name, 0) for name in checked}
    assert got == {name: architecture.counts.get(name, 0) for name in checked}, report.misses
    assert {kind: fused for kind, (fused, _) in report.anchors.items()} == {
        kind: every for kind, (_, every) in report.anchors.items()
    }, report.misses


def assert_numbers(built, module, inputs):
    """As near to float64 as twice PyTorch's own float32 error, or 1e-5 of the largest value."""
    with torch.no_grad():
        own = module(*inputs.values())
        module.double()
        exact = module(*(t.double() if t.is_floating_point() else t for t in inputs.values()))
    own, exact = ([out] if torch.is_tensor(out) else list(out) for out in (own, exact))
    specs = built.optimized.model.signature.inputs
    results = built.run({spec.name: t.numpy() for spec, t in zip(specs, inputs.values(), strict=True)})
    assert len(results) == len(exact)
    for ours, theirs, truth in zip(results, own, exact, strict=True):
        assert ours.shape == tuple(truth.shape)
        largest, error = float(truth.abs().max()), float((theirs.double() - truth).abs().max())
        np.testing.assert_allclose(ours, truth.numpy(), rtol=0, atol=max(2 * error, 1e-5 * largest))
