"""Widths of pages, as a browser lays them out."""

import re
import shutil
import subprocess

import pytest

from hetero_tvm.pages.page import name, page, retype, section, share_bar, table

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
_TELL = (
    "<script>document.body.dataset.wide = [...document.querySelectorAll('html, .wide')]"
    ".filter(e => e.scrollWidth > e.clientWidth).map(e => e.className || e.tagName)</script>"
)


@pytest.mark.thorough
@pytest.mark.skipif(BROWSER is None, reason="there is no browser")
@pytest.mark.parametrize("width", [500, 700, 860, 1000])
def test_nothing_has_to_be_scrolled_sideways(width, tmp_path):
    head = ("kernel", "calls", "share", "default ms", "tuned ms", "GFLOP/s", "% of roof", "record", "note")
    note = name("every point measured; /encoder/layer.0/attention/Resize_1#NCHW16c+1,1,1,1 and 1 more")
    kernel, record = name("conv2d_48x64x64_16_k3x3s1_relu"), name("2026-11-28, verified")
    row = (kernel, "1", share_bar(0.7), "0.2001", "0.2000", "283.8", ">100%", record, note)
    command = retype("python -m hetero_tvm.tune net.onnx --out " + "/long_folder" * 8)
    kernels = table(head, [row] * 3, range(1, 7))
    whole = page("net", "for cpu", [section("Again", command), section("Kernels", kernels)])
    (tmp_path / "page.html").write_text(whole + _TELL)
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    options += [f"--window-size={width},800", "--dump-dom", (tmp_path / "page.html").as_uri()]
    done = subprocess.run([BROWSER, *options], capture_output=True, text=True, timeout=100)
    assert re.search('data-wide="([^"]*)"', done.stdout)[1] == ""
