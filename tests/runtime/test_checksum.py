"""Damaged libraries: every changed byte is an error, and none a traceback."""

import json
import random
import re
import shutil
import struct
import subprocess
import zlib

import pytest

from hetero_tvm.errors import HeteroTVMError, LibraryError
from hetero_tvm.runtime import checksum, elf, embed_source, load, read_manifest
from hetero_tvm.runtime.manifest import MAGIC
from tests.runtime.conftest import compile_source, make_manifest, sample, weights


def changed(path, at, value=None):
    """``path`` with one bit flipped, or other bytes, at an offset; replaced, as an editor would."""
    data = bytearray(path.read_bytes())
    if value is None:
        data[at] ^= 4
    else:
        data[at : at + len(value)] = value
    fresh = path.with_suffix(".fresh")
    fresh.write_bytes(data)
    fresh.replace(path)
    return path


@pytest.fixture
def copy(mlp, tmp_path):
    """A library without its sidecar."""
    return shutil.copyfile(mlp, tmp_path / "mlp.so")


def test_a_flip_in_the_weights_is_an_error_unless_unwanted(copy, monkeypatch):
    at = copy.read_bytes().find(weights().tobytes()[:64])
    assert at > 0
    changed(copy, at + 40)
    with pytest.raises(LibraryError, match="damaged: code or constants"):
        load(copy)
    with pytest.raises(LibraryError, match="verify=False"):
        load(copy, verify=True)
    load(copy, verify=False)(sample())
    monkeypatch.setenv("HETERO_TVM_VERIFY", "0")
    load(copy)(sample())


def test_flips_anywhere_in_what_is_mapped_are_seen(copy):
    whole, chosen = copy.read_bytes(), random.Random(0)
    places = [at for low, high in elf.segments(whole) for at in range(max(low, elf.HEADER), high)]
    for at in chosen.sample(places, 100):
        with pytest.raises(LibraryError):
            checksum.verify(changed(copy, at))
        changed(copy, 0, whole)
    checksum.verify(copy)


@pytest.mark.skipif(not shutil.which("strip"), reason="needs strip")
def test_it_survives_strip(copy):
    subprocess.run(["strip", "--strip-all", copy], check=True)
    checksum.verify(copy)


def test_a_library_without_a_checksum_passes(tmp_path):
    text = re.sub(r"__attribute__.*? const Sealed .*?;\n", "", embed_source(make_manifest()))
    assert "const Sealed" not in text
    checksum.verify(compile_source(tmp_path, text))


def test_a_place_of_the_checksum_that_is_all_zeros_does_not_pass(copy):
    """What a file system leaves of a page that was never written."""
    whole = copy.read_bytes()
    at, size = elf.section(whole, checksum.SECTION.encode())
    for start, end in (
        (at, at + size),
        (at, at + len(checksum.MAGIC)),
        (at + size - checksum.SIZE, at + size),
    ):
        with pytest.raises(LibraryError):
            checksum.verify(changed(copy, start, bytes(end - start)))
        changed(copy, 0, whole)


def test_a_library_that_was_never_sealed_does_not_pass(tmp_path):
    with pytest.raises(LibraryError, match="wrong checksum"):
        checksum.verify(compile_source(tmp_path, embed_source(make_manifest())))


def with_manifest(data, text):
    """A library's bytes with another manifest, of the same size or less, and a right checksum of it."""
    at = data.find(MAGIC)
    size = struct.unpack_from("<24sIIQ", data, at)[3]
    text = text.ljust(size)[:size]
    head = struct.pack("<24sIIQ", MAGIC, 1, zlib.crc32(text), size)
    return data[:at] + head + text + data[at + len(head) + size :]


def mutants(text, count):
    """Texts of JSON with a few bytes, or a value, changed."""
    chosen = random.Random(1)
    values = [None, True, -1, 1e30, "", "x" * 9, [], {}, [None], [[[]]], {"a": 1}, "\ud800", 2**70]

    def places(value, path=()):
        if isinstance(value, dict | list):
            for key in value if isinstance(value, dict) else range(len(value)):
                yield (*path, key)
                yield from places(value[key], (*path, key))

    for number in range(count):
        if number % 3 == 0:
            other = bytearray(text)
            for _ in range(chosen.randint(1, 4)):
                other[chosen.randrange(len(other))] = chosen.randrange(256)
            yield bytes(other)
            continue
        tree = json.loads(text)
        *path, last = chosen.choice(list(places(tree)))
        inner = tree
        for key in path:
            inner = inner[key]
        if chosen.random() < 0.3 and isinstance(inner, dict):
            del inner[last]
        else:
            inner[last] = chosen.choice(values)
        yield json.dumps(tree, separators=(",", ":")).encode()


@pytest.mark.thorough
def test_no_edited_manifest_ends_in_a_traceback(copy):
    whole = copy.read_bytes()
    text = json.dumps(read_manifest(copy).to_json(), separators=(",", ":")).encode()
    refused = 0
    for mutant in mutants(text, 300):
        changed(copy, 0, mutated := with_manifest(whole, mutant))
        try:
            load(copy, verify=False, threads=1)
        except HeteroTVMError:
            refused += 1
        if mutated == whole:
            continue
        with pytest.raises(LibraryError):
            load(copy)
    assert refused > 100
    changed(copy, 0, with_manifest(whole, b"[" * len(text)))
    with pytest.raises(LibraryError):
        read_manifest(copy)
