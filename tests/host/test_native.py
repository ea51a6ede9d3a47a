import ctypes
import subprocess
import sys

import pytest

from hetero_tvm.errors import NativeBuildError
from hetero_tvm.host import native

CODE = '#include "answer.h"\nextern "C" int answer() { return ANSWER; }\n'


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.setenv("HETERO_TVM_CACHE", str(tmp_path / "cache"))
    (tmp_path / "answer.h").write_text("#define ANSWER 42\n")
    (tmp_path / "answer.cc").write_text(CODE)
    return tmp_path / "answer.cc"


def test_compiled_once_and_then_found(source):
    first = native.compile_shared([source], name="answer")
    assert ctypes.CDLL(str(first)).answer() == 42
    stamp = first.stat().st_mtime_ns
    assert native.compile_shared([source], name="answer") == first
    assert first.stat().st_mtime_ns == stamp
    names = {first.name, first.name + ".sha256"}
    assert {file.name for file in first.parent.iterdir()} == names  # no scratch files


@pytest.mark.parametrize("damage", ["cut", "changed", "no checksum", "empty checksum"])
def test_a_damaged_file_is_compiled_again(source, damage):
    first = native.compile_shared([source], name="answer")
    content = first.read_bytes()
    checksum = first.with_name(first.name + ".sha256")
    fresh = first.with_name("fresh")  # not in place: it may be loaded
    if damage == "cut":
        fresh.write_bytes(content[: len(content) // 2])
        fresh.replace(first)
    elif damage == "changed":
        fresh.write_bytes(content[:-9] + b"x" + content[-8:])
        fresh.replace(first)
    elif damage == "no checksum":
        checksum.unlink()
    else:
        checksum.write_text("")
    native._seen.clear()
    assert native.compile_shared([source], name="answer") == first
    assert first.read_bytes()[:4] == b"\x7fELF" and len(first.read_bytes()) == len(content)
    assert ctypes.CDLL(str(first)).answer() == 42


def test_everything_that_matters_changes_the_key(source, monkeypatch):
    paths = {native.compile_shared([source], name="answer")}
    paths.add(native.compile_shared([source], name="answer", flags=["-DX"]))
    paths.add(native.compile_shared([source], name="answer", flags=["-march=native"]))
    monkeypatch.setattr(native, "cpu_features", lambda: frozenset({"another cpu"}))
    paths.add(native.compile_shared([source], name="answer", flags=["-march=native"]))
    source.with_name("answer.h").write_text("#define ANSWER 43\n")
    paths.add(native.compile_shared([source], name="answer"))
    assert len(paths) == 5


def test_headers_in_include_folders_count(source, tmp_path):
    (tmp_path / "answer.h").unlink()
    (tmp_path / "include").mkdir()
    header = tmp_path / "include/answer.h"
    header.write_text("#define ANSWER 1\n")
    first = native.compile_shared([source], name="answer", include=[tmp_path / "include"])
    header.write_text("#define ANSWER 2\n")
    second = native.compile_shared([source], name="answer", include=[tmp_path / "include"])
    assert (ctypes.CDLL(str(first)).answer(), ctypes.CDLL(str(second)).answer()) == (1, 2)


def test_headers_compiled_ahead_are_read_and_found_again(source, tmp_path):
    """The one that lies in the source's own folder counts for the key, the compiled one is what g++ reads."""
    if "g++" not in native.find_compiler()[0]:
        pytest.skip("another compiler reads the header itself")
    folder = tmp_path / "headers"
    folder.mkdir()
    header = (tmp_path / "answer.h").rename(folder / "answer.h")
    ready = native.compile_header(header, flags=["-O1"], name="answer")
    assert native.compile_header(header, flags=["-O1"], name="answer") == ready
    assert [file.name for file in ready.iterdir()] == ["answer.h.gch"]
    options = [flag for flag in native.DEFAULT_FLAGS if flag != "-shared"]
    command = [*native.find_compiler(), *options, "-O1", "-H", "-fsyntax-only", f"-I{ready}", str(source)]
    told = subprocess.run(command, capture_output=True, text=True)
    assert told.returncode == 0 and f"! {ready}/answer.h.gch" in told.stderr  # "x": it does not fit
    library = native.compile_shared([source], include=[ready, folder], flags=["-O1"], name="answer")
    assert ctypes.CDLL(str(library)).answer() == 42
    header.write_text("#define ANSWER 43\n")
    assert native.compile_header(header, flags=["-O1"], name="answer") != ready


def test_an_error_shows_the_compilers_words_and_the_command(source):
    source.write_text("int main( {\n")
    with pytest.raises(NativeBuildError) as caught:
        native.compile_shared([source], name="broken")
    text = str(caught.value)
    assert "answer.cc:1" in text and "error" in text and "run it by hand" in text and "-fPIC" in text
    assert not list((source.parent / "cache").iterdir())


def test_sanitizers_are_a_build_of_its_own(source, monkeypatch):
    plain = native.compile_shared([source], name="answer")
    monkeypatch.setenv("HETERO_TVM_SANITIZE", "undefined")
    sanitized = native.compile_shared([source], name="answer")
    assert sanitized.parent == plain.parent / "sanitized-undefined" and sanitized.name != plain.name
    assert "-fsanitize=undefined" in native.find_compiler()


def test_without_a_compiler_the_install_command_is_named(source, monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(source.parent))
    with pytest.raises(NativeBuildError, match=r"apt-get install -y g\+\+"):
        native.compile_shared([source], name="answer")
    monkeypatch.setenv("CXX", "no-such-compiler -m64")
    with pytest.raises(NativeBuildError, match="no-such-compiler"):
        native.compile_shared([source], name="answer")


@pytest.mark.parametrize("suffix", ["", ".sha256"])
def test_a_folder_in_the_place_of_a_compiled_file_is_named(source, suffix):
    library = native.compile_shared([source], name="answer")
    place = library.with_name(library.name + suffix)
    place.unlink()
    (place / "inner").mkdir(parents=True)
    native._seen.clear()
    with pytest.raises(NativeBuildError, match=f"{place.name} is a folder") as caught:
        native.compile_shared([source], name="answer")
    assert f"rm -r {place}" in str(caught.value) and (place / "inner").is_dir()


def test_a_cache_that_cannot_be_written_names_the_variable(source, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HETERO_TVM_CACHE", str(tmp_path / "file/below"))
    with pytest.raises(NativeBuildError, match="HETERO_TVM_CACHE"):
        native.compile_shared([source], name="answer")


def test_what_a_read_only_cache_lacks_goes_to_a_spare_folder(source, tmp_path, monkeypatch):
    """As in an image that was filled before its root became read-only."""
    monkeypatch.delenv("HETERO_TVM_CACHE")
    monkeypatch.setattr(native, "user_cache", lambda: tmp_path / "filled")
    monkeypatch.setattr(native, "spare_cache", lambda: None)
    known = native.compile_shared([source], name="answer")
    monkeypatch.setattr(native, "spare_cache", lambda: tmp_path / "spare")
    assert native.compile_shared([source], name="answer") == known
    fresh = native.compile_shared([source], name="other")
    assert fresh.parent == tmp_path / "spare" / "native"
    assert native.compile_shared([source], name="other") == fresh
    monkeypatch.setenv("HETERO_TVM_CACHE", str(tmp_path / "named"))
    assert native.spare_dir() is None


def test_a_missing_source_is_named(tmp_path):
    with pytest.raises(NativeBuildError, match="host/cpp/none.cc"):
        native.source_path("host/cpp/none.cc")
    assert native.source_path("host/cpp/peak.cc").is_file()


def test_processes_may_compile_at_the_same_time(source):
    script = "import sys\nfrom hetero_tvm.host import native\n"
    script += "print(native.compile_shared(sys.argv[1:], name='a'))"
    command = [sys.executable, "-c", script, str(source)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    paths = {process.communicate()[0] for process in running}
    assert len(paths) == 1 and all(process.returncode == 0 for process in running)
    assert ctypes.CDLL(paths.pop().strip()).answer() == 42
