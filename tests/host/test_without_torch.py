"""Imports that leave PyTorch out."""

import sys

import pytest

from hetero_tvm.host.without_torch import without_torch


def test_torch_cannot_be_imported_inside_and_can_again_behind(monkeypatch, tmp_path):
    (tmp_path / "torch.py").write_text("HERE = True")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    with without_torch(), pytest.raises(ImportError):
        import torch
    import torch

    assert torch.HERE
    del sys.modules["torch"]


def test_a_torch_that_is_loaded_stays(monkeypatch):
    torch = type(sys)("torch")
    monkeypatch.setitem(sys.modules, "torch", torch)
    with without_torch():
        assert sys.modules["torch"] is torch
    assert sys.modules["torch"] is torch
