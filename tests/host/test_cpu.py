"""The CPU as the kernel describes it: features, vector unit, caches."""

import pytest

from hetero_tvm.host import cpu

CPUINFO = "processor : 0\nmodel name\t: A Chip 9000 \nflags\t\t: fpu sse2 avx2 fma\nbugs\t: none\n"


@pytest.fixture
def a_chip(monkeypatch):
    monkeypatch.setattr(cpu, "_cpuinfo", lambda: CPUINFO)
    cpu.cpu_features.cache_clear()
    yield
    cpu.cpu_features.cache_clear()


def test_features_and_name_are_the_kernels(a_chip):
    assert cpu.cpu_features() == {"fpu", "sse2", "avx2", "fma"}
    assert cpu.model_name() == "A Chip 9000"


def test_names_without_llvm():
    v3 = {"avx2", "fma", "bmi1", "bmi2", "f16c", "movbe"}
    assert cpu.psabi_level(frozenset(v3), "x86_64") == "x86-64-v3"
    assert cpu.psabi_level(frozenset({"sse2"}), "x86_64") == "x86-64"
    assert cpu.psabi_level(frozenset({"asimd"}), "aarch64") == "generic"


@pytest.mark.parametrize(
    "features, architecture, expected",
    [
        ({"avx512f", "avx2"}, "x86_64", (512, 32)),
        ({"avx2"}, "x86_64", (256, 16)),
        ({"sse2"}, "AMD64", (128, 16)),
        ({"asimd"}, "aarch64", (128, 32)),
    ],
)
def test_vector_units(features, architecture, expected):
    assert cpu.vector_unit(frozenset(features), architecture) == expected


@pytest.mark.parametrize(
    "name, features, expected",
    [
        ("rocketlake", {"avx512_fp16", "amx_tile"}, "sapphirerapids"),
        ("icelake-client", {"avx512_fp16"}, "sapphirerapids"),
        ("rocketlake", {"avx512_fp16", "amx_fp16"}, "graniterapids"),
        ("graniterapids", {"avx512_fp16"}, "graniterapids"),
        ("znver6", {"avx512_fp16"}, "znver6"),
        ("rocketlake", {"avx512f"}, "rocketlake"),
    ],
)
def test_features_tell_what_a_hypervisor_hides(name, features, expected):
    assert cpu.shown_as(name, frozenset(features)) == expected


def test_tiles_without_permission_are_no_feature(monkeypatch):
    text = "flags\t: fpu avx512f amx_tile amx_int8 amx_bf16\n"
    for permitted, expected in ((True, {"amx_tile", "amx_int8", "amx_bf16"}), (False, set())):
        monkeypatch.setattr(cpu, "_cpuinfo", lambda: text)
        monkeypatch.setattr(cpu, "tiles_are_permitted", lambda permitted=permitted: permitted)
        cpu.cpu_features.cache_clear()
        assert cpu.cpu_features() == {"fpu", "avx512f"} | expected
    cpu.cpu_features.cache_clear()


def test_units_for_fused_multiply_add():
    assert cpu.fma_units_of("znver4", 512) == 1 and cpu.fma_units_of("znver4", 256) == 2
    assert cpu.fma_units_of("sapphirerapids", 512) == 2
    assert cpu.fma_units_of("znver1", 256) == 1


@pytest.mark.parametrize(
    "name, features, cpuinfo, units",
    [
        ("rocketlake", set(), "", 1),
        ("rocketlake", {"avx512_fp16"}, "", 2),
        ("icelake-client", {"amx_tile"}, "", 2),
        ("icelake-client", set(), "model name\t: Intel(R) Xeon(R) Platinum 8370C CPU @ 2.80GHz\n", 2),
        ("rocketlake", set(), "model name\t: Intel(R) Xeon(R) E-2388G CPU @ 3.20GHz\n", 1),
        ("rocketlake", set(), "model name\t: 11th Gen Intel(R) Core(TM) i7-11700K @ 3.60GHz\n", 1),
        ("znver5", set(), "cpu family\t: 26\nmodel\t\t: 2\n", 2),
        ("znver5", set(), "cpu family\t: 26\nmodel\t\t: 68\n", 2),
        ("znver5", set(), "cpu family\t: 26\nmodel\t\t: 36\n", 1),
        ("znver4", set(), "cpu family\t: 25\nmodel\t\t: 17\n", 1),
    ],
)
def test_units_by_better_evidence_than_the_name(name, features, cpuinfo, units):
    assert cpu.fma_units_of(name, 512, frozenset(features), cpuinfo) == units
    assert cpu.fma_units_of(name, 256, frozenset(features), cpuinfo) == 2


def test_caches_are_read_from_sysfs(monkeypatch, tmp_path):
    """Data and unified caches count; what sysfs does not show has a common size."""
    shown = [("1", "Data", "48K"), ("1", "Instruction", "64K"), ("2", "Unified", "2M")]
    for number, texts in enumerate(shown):
        folder = tmp_path / f"index{number}"
        folder.mkdir()
        for file, text in zip(("level", "type", "size"), texts, strict=True):
            (folder / file).write_text(text + "\n")
    monkeypatch.setattr(cpu, "Path", lambda _: tmp_path)
    assert cpu.caches() == {"l1d": 48 << 10, "l2": 2 << 20, "l3": 8 << 20}
