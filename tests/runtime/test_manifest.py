import _ctypes
import ctypes
import errno
import json
import re
import shutil
import subprocess

import pytest

from hetero_tvm import host
from hetero_tvm.errors import BuildError, LibraryError, UsageError
from hetero_tvm.runtime import Manifest, TensorSpec, elf, embed_source, read_manifest, write_sidecar
from hetero_tvm.runtime.cpuid import FEATURES
from hetero_tvm.runtime.manifest import creation_time, file_sha256, verify_sidecar
from tests.runtime.conftest import compile_manifest, make_manifest

NASTY = (
    'quote " backslash \\ trigraph ??/ newline \n tab \t percent %s at @SIZE@ @JSON@ accent \u00e9 \U0001f600'
)


@pytest.fixture
def manifest():
    return make_manifest(
        NASTY,
        [TensorSpec("input_ids", (1, "sequence"), "int64")],
        [TensorSpec("logits", (1, "sequence", 7), "bfloat16")],
        isa=("sse2", "sse4_2"),
        cpu='weird "cpu"',
        kernels=[{"name": f"kernel_{i}", "gflops": i / 3} for i in range(50)],
        memory={"arena": 4096},
        accuracy=[1e-6],
        created="2026-01-01T00:00:00Z",
    )


def test_json_round_trip(manifest):
    assert Manifest.from_json(json.loads(json.dumps(manifest.to_json()))) == manifest


def test_it_is_read_without_loading(tmp_path, manifest):
    path = compile_manifest(tmp_path, manifest)
    assert read_manifest(path) == manifest


@pytest.mark.skipif(not shutil.which("strip"), reason="needs strip")
def test_it_survives_strip(tmp_path, manifest):
    path = compile_manifest(tmp_path, manifest)
    subprocess.run(["strip", "--strip-all", path], check=True)
    assert read_manifest(path) == manifest


def test_it_is_found_without_section_names(tmp_path, manifest):
    path = compile_manifest(tmp_path, manifest)
    data = bytearray(path.read_bytes())
    data[40:48] = bytes(8)  # e_shoff
    path.write_bytes(data)
    assert read_manifest(path) == manifest


@pytest.mark.parametrize("part", [0.0, 0.001, 0.3, 0.6, 0.99])
def test_a_file_that_is_cut_off_is_refused(tmp_path, manifest, part):
    path = compile_manifest(tmp_path, manifest)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * part)])
    with pytest.raises(LibraryError, match="cannot read|cut off"):
        read_manifest(path)


def test_a_file_that_this_user_may_not_read_is_no_damaged_one(tmp_path, manifest, monkeypatch):
    path = compile_manifest(tmp_path, manifest)

    def refuse(*arguments, **options):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(type(path), "open", refuse)
    for read in (read_manifest, elf.check_machine):
        with pytest.raises(LibraryError, match="cannot be read: Permission denied") as caught:
            read(path)
        assert "chmod" in str(caught.value) and "export" not in str(caught.value)


def test_a_changed_byte_is_noticed(tmp_path, manifest):
    path = compile_manifest(tmp_path, manifest)
    data = path.read_bytes()
    path.write_bytes(data.replace(b"kernel_7", b"kernel_8"))
    with pytest.raises(LibraryError, match="damaged"):
        read_manifest(path)


def test_a_library_of_others_is_refused():
    with pytest.raises(LibraryError, match="carries no manifest"):
        read_manifest(_ctypes.__file__)


def test_a_later_schema_asks_for_an_upgrade(manifest):
    with pytest.raises(LibraryError, match="upgrade"):
        Manifest.from_json({**manifest.to_json(), "manifest_version": 2})


@pytest.mark.parametrize("key", ["signature", "target", "versions", "name"])
def test_a_missing_key_is_an_error_of_ours(manifest, key):
    data = manifest.to_json()
    del data[key]
    with pytest.raises(LibraryError, match="damaged"):
        Manifest.from_json(data)


def test_the_sidecar_adds_the_hash_and_catches_a_change(tmp_path, manifest):
    path = compile_manifest(tmp_path, manifest, "model.so")
    sidecar = write_sidecar(path, manifest)
    assert sidecar.name == "model.manifest.json"
    data = json.loads(sidecar.read_text())
    assert data.pop("sha256") == file_sha256(path)
    assert data == manifest.to_json()
    verify_sidecar(path)
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(LibraryError, match="not the file that was exported"):
        verify_sidecar(path)


def test_c_programs_get_the_same_json(tmp_path, manifest):
    library = ctypes.CDLL(str(compile_manifest(tmp_path, manifest)))
    library.hetero_tvm_manifest.restype = ctypes.c_char_p
    assert json.loads(library.hetero_tvm_manifest()) == manifest.to_json()


def test_the_cpu_check_agrees_with_the_kernel(tmp_path):
    """Every feature of the table, one library: what it calls missing is what the kernel lacks."""
    path = compile_manifest(tmp_path, make_manifest(isa=tuple(FEATURES)))
    message = ctypes.create_string_buffer(4096)
    missing = ctypes.CDLL(str(path)).hetero_tvm_check_cpu(message, ctypes.c_size_t(4096))
    named = re.sub(r" \([^)]*\)", "", message.value.decode().partition("lacks: ")[2])
    # The kernel may hide what cpuid shows, never the other way round.
    absent = set(FEATURES) - host.cpu_features()
    assert set(filter(None, named.split(", "))) <= absent
    assert missing == len(list(filter(None, named.split(", "))))
    wide = {"avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "amx_tile"}
    assert wide & absent <= set(named.split(", "))


def test_the_cpu_check_needs_no_buffer_and_respects_a_short_one(tmp_path):
    absent = sorted(set(FEATURES) - host.cpu_features())
    if len(absent) < 2:
        pytest.skip("this CPU has everything")
    library = ctypes.CDLL(str(compile_manifest(tmp_path, make_manifest(isa=tuple(absent[:2])))))
    assert library.hetero_tvm_check_cpu(None, ctypes.c_size_t(0)) == 2
    short = ctypes.create_string_buffer(b"\xff" * 20, 20)
    assert library.hetero_tvm_check_cpu(short, ctypes.c_size_t(10)) == 2
    assert short.raw[9:] == b"\0" + b"\xff" * 10


def test_a_feature_that_cannot_be_checked_is_refused_at_export():
    with pytest.raises(BuildError, match="avx1024"):
        embed_source(make_manifest(isa=("sse2", "avx1024")))


def test_a_target_shows_in_a_few_words(manifest):
    target = manifest.target
    told = repr(target)
    assert told.startswith(f"<TargetInfo: {target.kind}") and f"{len(target.isa)} features" in told
    assert len(told) < 100


def test_its_time_may_be_given(monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    assert creation_time() == "2023-11-14T22:13:20+00:00"
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "")
    assert creation_time() > "2026"


@pytest.mark.parametrize("text", ["yesterday", "1e9", "9" * 30])
def test_a_time_that_is_none_is_refused(monkeypatch, text):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", text)
    with pytest.raises(UsageError, match="SOURCE_DATE_EPOCH"):
        creation_time()
