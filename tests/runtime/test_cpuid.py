"""The table of CPU features: complete for what is built, without two features in one place."""

import re
import shutil
import subprocess

import pytest

from hetero_tvm import host
from hetero_tvm.runtime.cpuid import FEATURES


def test_each_feature_has_a_place_of_its_own():
    places = [place[:4] for place in FEATURES.values()]
    assert len(set(places)) == len(places)
    assert all(0 <= register <= 3 and 0 <= bit <= 31 for _, _, register, bit, _ in FEATURES.values())


def test_wide_registers_ask_the_operating_system_for_their_state():
    """AVX needs bits 1 and 2 of XCR0, AVX-512 bits 5 to 7 as well, AMX bits 17 and 18 (Intel SDM, 13.3)."""
    for name, (*_, state) in FEATURES.items():
        if name.startswith("avx512"):
            assert state == 0b11100110, name
        elif name.startswith("amx"):
            assert state == 0b11 << 17, name
        elif name.startswith("avx") or name in ("fma", "f16c", "vaes", "vpclmulqdq"):
            assert state == 0b110, name


def test_places_agree_with_the_compilers_header(tmp_path):
    """``cpuid.h`` names the bits of leaves 1 and 7 for GCC."""
    if not shutil.which("g++") or "sse2" not in host.cpu_features():
        pytest.skip("needs g++ on x86")
    same = ("sse2", "avx", "fma", "avx2", "avx512f", "bmi2", "popcnt", "amx_int8")
    names = {name: name.upper() for name in same}
    names |= {"avx512_vnni": "AVX512VNNI", "avx512_bf16": "AVX512BF16"}
    source = "#include <cpuid.h>\n" + "".join(f"{name} = bit_{macro}\n" for name, macro in names.items())
    command = ["g++", "-E", "-P", "-x", "c++", "-"]
    text = subprocess.run(command, input=source, capture_output=True, text=True, check=True).stdout
    found = dict(re.findall(r"^(\w+) = \(1 << (\d+)\)$", text, re.MULTILINE))
    assert {name: int(bit) for name, bit in found.items()} == {name: FEATURES[name][3] for name in names}
