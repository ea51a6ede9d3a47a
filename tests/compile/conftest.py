"""A small encoder with open batch and sequence, built once for all tests of this folder."""

from __future__ import annotations

import pytest

from hetero_tvm.api import build_model, import_model, optimize_model
from hetero_tvm.frontend import Span


@pytest.fixture(scope="package")
def optimized():
    names = {spec.name for spec in import_model("zoo:minilm-l6-tiny").signature.inputs}
    shapes = dict.fromkeys(names, (Span(1, 3), Span(2, 20)))
    return optimize_model(import_model("zoo:minilm-l6-tiny", shapes=shapes))


@pytest.fixture(scope="package")
def built(optimized):
    return build_model(optimized)


@pytest.fixture(scope="package")
def library(built, tmp_path_factory):
    return built.export(tmp_path_factory.mktemp("dynamic") / "model.so")
