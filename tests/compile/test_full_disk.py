"""A disk that is full at writes of an export; all writes of all commands: ``tests/campaign/disk_full.py``."""

import os

import numpy as np
import pytest

import hetero_tvm
from hetero_tvm import api
from hetero_tvm.errors import BuildError, NativeBuildError, UsageError
from hetero_tvm.host import native
from hetero_tvm.memory import read_csv, write_csv
from tests.campaign.disk_full import SmallDisk, may_mount, write_model

needs_mounts = pytest.mark.skipif(not may_mount(), reason="this process may not mount file systems")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    write_model(folder / "model.onnx")
    optimized = api.optimize_model(api.import_model(folder / "model.onnx"))
    return api.build_model(optimized, logs=folder)


@pytest.fixture
def disk(tmp_path):
    small = SmallDisk(tmp_path / "disk")
    small.resize(1 << 16)
    yield small
    small.unmount()


@pytest.mark.thorough
@needs_mounts
@pytest.mark.parametrize("pages", [0, 6])
def test_an_export_is_whole_or_not_there(built, disk, pages):
    path = built.export(disk.folder)
    before = path.read_bytes()
    disk.room(pages)
    names = set(os.listdir(disk.folder))
    with pytest.raises(BuildError, match=str(disk.folder)):
        built.export(disk.folder)
    assert path.read_bytes() == before and set(os.listdir(disk.folder)) == names
    (disk.folder / ".filler").unlink(missing_ok=True)
    disk.resize(1 << 16)
    x = np.ones((8, 64), np.float32)
    np.testing.assert_array_equal(hetero_tvm.load(built.export(disk.folder))(x), built.run({"x": x})[0])


@needs_mounts
def test_a_full_folder_of_temporary_files(built, disk, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(disk.folder))
    monkeypatch.setenv("TMPDIR", str(disk.folder))
    disk.room(0)
    with pytest.raises(BuildError, match=str(tmp_path)):
        built.export(tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())


@needs_mounts
def test_a_full_cache(disk, tmp_path, monkeypatch):
    monkeypatch.setenv(native.CACHE_VARIABLE, str(disk.folder))
    (tmp_path / "one.cc").write_text('extern "C" int one() { return 1; }')
    disk.room(1)
    with pytest.raises(NativeBuildError, match=str(disk.folder)):
        native.compile_shared([tmp_path / "one.cc"], name="one")
    (disk.folder / ".filler").unlink(missing_ok=True)
    disk.resize(1 << 16)
    assert native.compile_shared([tmp_path / "one.cc"], name="one").is_file()


@needs_mounts
def test_a_plan_is_whole_or_not_there(disk, tmp_path):
    rows = "\n".join(f"b{n},{n},{n + 2},64" for n in range(2000))
    (tmp_path / "a.csv").write_text(f"id,lower,upper,size\n{rows}\n")
    problem, _ = read_csv(tmp_path / "a.csv")
    offsets = {f"b{n}": 64 * (n % 2) for n in range(2000)}
    path = disk.folder / "plan.csv"
    path.write_text("old")
    disk.room(2)
    with pytest.raises(UsageError, match=str(path)):
        write_csv(path, problem, offsets)
    assert path.read_text() == "old" and set(os.listdir(disk.folder)) <= {"plan.csv", ".filler"}
