"""Findings of the doctor: each part is there, and what is missing comes with the way to get it."""

import importlib.util

import pytest

from hetero_tvm.cli import doctor
from hetero_tvm.errors import NativeBuildError

pytest.importorskip("tvm")


@pytest.fixture(scope="module")
def found():
    return doctor.findings()


def test_all_parts_are_looked_at(found):
    parts = ["machine", "noise", "tools", "packages", "targets", "records", "extras"]
    assert list(dict.fromkeys(one.part for one in found)) == parts
    assert not [one for one in found if one.status == doctor.MISSING]
    assert {one.name for one in found if one.part == "extras"} == set(doctor.EXTRAS)
    assert {"cpu", "npu", "cuda"} <= {one.name for one in found if one.part == "targets"}


def test_extras_are_those_of_the_package():
    import configparser

    from tests.import_graph import ROOT

    declared = configparser.ConfigParser(interpolation=None)
    declared.read(ROOT / "setup.cfg")
    sections = declared["options.extras_require"]
    assert set(doctor.EXTRAS) == set(sections)
    for extra, (distributions, _) in doctor.EXTRAS.items():
        assert all(name in sections[extra] for name in distributions)


def test_what_is_missing_says_how_to_get_it(monkeypatch):
    def none():
        raise NativeBuildError("no C++ compiler was found", hint="apt install g++")

    monkeypatch.setattr(doctor.native, "find_compiler", none)
    real = importlib.util.find_spec
    monkeypatch.setattr(
        doctor.importlib.util, "find_spec", lambda name: None if name == "onnx" else real(name)
    )
    monkeypatch.setattr(doctor, "current_versions", lambda: {"tvm": "0.26.0"})
    found = {one.name: one for one in [*doctor._tools(), *doctor._packages()]}
    assert found["C++ compiler"].status == doctor.MISSING and "g++" in found["C++ compiler"].hint
    assert found["onnx"].status == doctor.MISSING and "pip install onnx" in found["onnx"].hint
    assert found["apache-tvm"].text == "0.26.0, but 0.27.0.post1 is wanted"
    assert found["apache-tvm-ffi"].text == "not installed"


def test_folders_that_cannot_be_written_to_are_told(monkeypatch):
    monkeypatch.setattr(doctor.os, "access", lambda path, mode: False)
    found = {one.name: one for one in [*doctor._tools(), *doctor._records()]}
    assert found["cache"].status == doctor.MISSING and "cannot be written to" in found["cache"].text
    assert found["yours"].status == doctor.WARNING and "HETERO_TVM_LOGS" in found["yours"].hint
    assert found["shipped"].status == doctor.OK  # it is only read


def test_a_read_only_cache_is_enough_where_another_folder_takes_what_is_new(monkeypatch, tmp_path):
    (tmp_path / "filled" / "native").mkdir(parents=True)
    monkeypatch.delenv("HETERO_TVM_CACHE", raising=False)
    monkeypatch.setattr(doctor.native, "user_cache", lambda: tmp_path / "filled")
    monkeypatch.setattr(doctor.native, "spare_cache", lambda: tmp_path / "spare")
    real = doctor.os.access
    monkeypatch.setattr(
        doctor.os, "access", lambda path, mode: "filled" not in str(path) and real(path, mode)
    )
    found = {one.name: one for one in doctor._tools()}
    assert found["cache"].status == doctor.OK
    assert (
        found["cache"].text
        == f"{tmp_path}/filled/native is read; what is new goes to {tmp_path}/spare/native"
    )
