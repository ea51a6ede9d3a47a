"""Options of the backend: every mistake is listed."""

import pytest

from hetero_tvm.errors import UsageError
from hetero_tvm.torch.options import Options


def test_defaults_and_given_values():
    assert Options.of(None) == Options()
    assert Options.of({"shapes": 3, "refused": "raise"}).shapes == 3


def test_all_mistakes_are_listed_at_once():
    wrong = {"shape": 3, "shapes": 0, "refused": "never", "check": 1, "target": "cuda", "on_event": 5}
    wrong["precision"] = "int3"
    with pytest.raises(UsageError) as caught:
        Options.of(wrong)
    assert len(caught.value.problems) == len(wrong)
    for name in wrong:
        assert any(problem.startswith(name) for problem in caught.value.problems)


def test_the_folder_follows_the_option_then_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("HETERO_TVM_CACHE", str(tmp_path))
    assert Options().folder == tmp_path / "torch"
    assert Options(cache=tmp_path / "mine").folder == tmp_path / "mine"


def test_the_bound_of_the_folder_is_a_number(monkeypatch):
    monkeypatch.setenv("HETERO_TVM_CACHE_BYTES", "1000")
    assert Options().bound == 1000 and Options(cache_bytes=7).bound == 7
    monkeypatch.setenv("HETERO_TVM_CACHE_BYTES", "much")
    with pytest.raises(UsageError, match="much"):
        assert Options().bound
