"""Widths of pages, as a browser lays them out."""

import re
import shutil
import subprocess
from html import escape

import pytest

from hetero_tvm.pages.page import name, page, retype, section, share_bar, table

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
_FRAME = """<iframe style="width: {width}px; height: 800px; border: 0" srcdoc="{page}"></iframe>
<script>window.onload = () => {{ const inner = document.querySelector("iframe").contentDocument;
document.body.dataset.wide = [...inner.querySelectorAll("html, .wide")]
.filter(e => e.scrollWidth > e.clientWidth).map(e => e.className || e.tagName); }}</script>"""
"""A page in a frame: windows of a browser have at least 500 pixels."""


@pytest.mark.thorough
@pytest.mark.skipif(BROWSER is None, reason="there is no browser")
@pytest.mark.parametrize("width", [360, 375, 500, 700, 860, 1000])
def test_nothing_has_to_be_scrolled_sideways(width, tmp_path):
    head = ("kernel", "calls", "share", "default ms", "tuned ms", "GFLOP/s", "% of roof", "record", "note")
    note = name("every point measured; /encoder/layer.0/attention/Resize_1#NCHW16c+1,1,1,1 and 1 more")
    kernel, record = name("conv2d_48x64x64_16_k3x3s1_relu"), name("2026-11-28, verified")
    row = (kernel, "1", share_bar(0.7), "0.2001", "0.2000", "283.8", ">100%", record, note)
    command = retype("python -m hetero_tvm.tune net.onnx --out " + "/long_folder" * 8)
    kernels = table(head, [row] * 3, range(1, 7))
    versions = name("hetero_tvm 0.1.0, tvm 0.27.0.post1, tvm_ffi 0.1.14.post1")
    machine = table(("", ""), [("caches", "L1 32 kB, L2 1024 kB, L3 32 MB"), ("versions", versions)])
    drift = "the machine drifted: bf16_conv2d_64x56x56_64_k3x3s1_bias_relu_to_halves took 0.139 ms"
    sections = [
        section("Again", command),
        section("Search", drift),
        section("Kernels", kernels),
        section("Machine", machine),
    ]
    whole = page("net", "for cpu", sections)
    (tmp_path / "page.html").write_text(_FRAME.format(width=width, page=escape(whole)))
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    options += ["--window-size=1100,900", "--dump-dom", (tmp_path / "page.html").as_uri()]
    done = subprocess.run([BROWSER, *options], capture_output=True, text=True, timeout=100)
    assert re.search('data-wide="([^"]*)"', done.stdout)[1] == ""
