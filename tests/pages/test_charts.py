"""Drawings: every kernel where its numbers say, and nothing outside of the picture."""

import re

import numpy as np
import pytest

from hetero_tvm.pages.charts import Box, Dot, _Axis, arena, curve, roofline
from tests.pages.test_page import parsed


def numbers(svg, pattern):
    return [tuple(map(float, found)) for found in re.findall(pattern, svg)]


def test_roofline():
    dots = [Dot("ridge", 10.0, 100.0, 0.5), Dot("slow <&>", 1.0, 1.0, 0.25), Dot("nothing", 0.0, 0.0, 0.0)]
    svg = roofline(dots, peak_gflops=100.0, bandwidth_gbs=10.0)
    parsed(svg)
    (ridge, slow) = numbers(svg, r'cx="([\d.]+)" cy="([\d.]+)" r="([\d.]+)"')
    path = numbers(svg, r'class="roof" d="M[\d.]+,[\d.]+ L([\d.]+),([\d.]+)')[0]
    assert ridge[:2] == pytest.approx(path, abs=0.11)  # a kernel at both roofs lies on the corner
    assert slow[0] < ridge[0] and slow[1] > ridge[1] and slow[2] < ridge[2]
    assert "slow &lt;&amp;&gt;: 1.0 GFLOP/s" in svg


def test_each_kind_of_arithmetic_has_its_roof():
    svg = roofline([Dot("int8", 40.0, 390.0, 1.0)], 100.0, 10.0, {"int8": 400.0})
    roofs = re.findall(r'class="roof" d="M([\d.]+),([\d.]+)[^"]* L[\d.]+,([\d.]+)"', svg)
    assert len(roofs) == 2 and "100 GFLOP/s in float32" in svg and "400 GFLOP/s in int8" in svg
    ((_, dot),) = numbers(svg, r'cx="([\d.]+)" cy="([\d.]+)"')
    low, high = (float(end) for _, _, end in roofs)
    assert high < dot < low  # under its own roof, above the other
    assert float(roofs[0][1]) == low  # which begins where the slope passes it


def test_caches_have_a_slope_above_that_of_the_memory():
    dots = [Dot("k", 1.0, 20.0, 1.0)]
    with_caches = roofline(dots, 100.0, 10.0, cache_gbs=40.0)
    parsed(with_caches)
    assert with_caches.count('class="roof"') == 2 and "40 GB/s, caches" in with_caches
    assert roofline(dots, 100.0, 10.0, cache_gbs=10.0) == roofline(
        dots, 100.0, 10.0
    )  # it would hide the other


def test_words_stand_clear_of_dots_and_of_the_axis():
    svg = roofline([Dot("k", 50.0, 225.0, 1.0)], 225.0, 56.0, cache_gbs=231.0)
    ((_, middle, radius),) = numbers(svg, r'cx="([\d.]+)" cy="([\d.]+)" r="([\d.]+)"')
    labels = re.findall(r'class="label" x="(\d+)" y="(\d+)" text-anchor="(\w+)">([^<]+)', svg)
    at = {words: (float(x), float(y), anchor) for x, y, anchor, words in labels}
    assert at["225 GFLOP/s"][1] <= middle - radius
    place, _, anchor = at["231 GB/s, caches"]
    assert (place if anchor == "start" else place - 180) >= 84
    assert svg.rindex("<circle") < svg.index('class="label"')


def test_words_of_a_slope_do_not_meet_those_of_the_roof():
    """Letters of a telephone are some 11 pixels wide."""
    svg = roofline([], 343.0, 26.0, {"bfloat16": 3487.0}, cache_gbs=150.0)
    labels = re.findall(r'class="label" x="(\d+)" y="(\d+)" text-anchor="(\w+)">([^<]+)', svg)
    at = {words: (float(x), anchor) for x, _, anchor, words in labels}
    slope, anchor = at["150 GB/s, caches"]
    roof, _ = at["3487 GFLOP/s in bfloat16"]
    assert (slope if anchor == "end" else slope + 180) <= roof - 11 * len("3487 GFLOP/s in bfloat16")


@pytest.mark.parametrize("seed", range(3))
def test_nothing_leaves_the_picture(seed):
    rng = np.random.default_rng(seed)
    dots = [Dot("k", *(10 ** rng.uniform(-4, 5, 2)), rng.random()) for _ in range(20)]
    svg = roofline(dots, float(10 ** rng.uniform(0, 4)), float(10 ** rng.uniform(0, 3)))
    for x, y in numbers(svg, r'cx="([\d.]+)" cy="([\d.]+)"'):
        assert 60 <= x <= 710 and 10 <= y <= 320
    points = [(float(i), float(v)) for i, v in enumerate(np.sort(rng.random(30))[::-1])]
    for x, y in numbers(curve(points, "seconds", "ms"), r"L([\d.]+),([\d.]+)"):
        assert 60 <= x <= 710 and 10 <= y <= 320


def test_a_curve_of_one_point_and_of_none():
    svg = curve([(3.0, 1.0)], "seconds", "ms")
    parsed(svg)
    assert len(numbers(svg, r'cx="([\d.]+)" cy="([\d.]+)"')) == 1  # a path of one point draws nothing
    assert curve([], "seconds", "ms") == ""


def test_arena():
    boxes = [Box("a", 0, 2, 0, 1 << 20), Box("b", 2, 3, 1 << 20, 1 << 20)]
    svg = arena(boxes, 2 << 20, 2 << 20)
    parsed(svg)
    (a, b) = numbers(svg, r'<rect class="box" x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)"')
    assert a[0] < b[0] and a[1] > b[1] and a[2] == pytest.approx(2 * b[2], abs=0.2)
    assert "MiB" in svg and "a: 1,048,576 bytes" in svg and arena([], 0, 0) == ""


def test_ticks_are_round():
    assert _Axis(0, 10, 0, 1).ticks() == [0, 2, 4, 6, 8, 10]
    assert _Axis(0.1, 1000, 0, 1, True).ticks() == [0.1, 1, 10, 100, 1000]
    assert _Axis(3, 3, 0, 1).at(3) == 0
