"""Charts, checked by the elements of the drawing."""

import math
import os
import re
import subprocess
import sys
from itertools import pairwise
from xml.etree import ElementTree

import pytest

from xla_nb.views.rendering import chart
from xla_nb.views.rendering.chart import INSET

WIDTH, HEIGHT = 200, 80
RED, BLUE = "#e04040", "#4060e0"


def elements(drawing):
    """The attributes and points of each drawn element."""
    root = ElementTree.fromstring(drawing)
    drawn = [dict(one.attrib) for one in root if one.tag.rpartition("}")[2] in ("path", "rect")]
    for one in drawn:
        pairs = re.findall(r"([\d.-]+) ([\d.-]+)", one.get("d", ""))
        one["points"] = [(float(x), float(y)) for x, y in pairs]
    return drawn


def frame(*lines):
    """The frame around lines."""
    xs = [x for line in lines for x, _ in line]
    ys = [y for line in lines for _, y in line if math.isfinite(y)]
    return chart.Frame(min(xs), max(xs), chart.ticks(min(ys), max(ys)))


def picture(*lines, colours=(RED, BLUE), band=()):
    coloured = [*zip(colours, lines, strict=False)]
    return chart.svg(coloured, WIDTH, HEIGHT, frame(*lines, *band), band)


def draw(*lines, band=()):
    """The elements drawn for lines and for a band below them."""
    shown = elements(picture(*lines, band=band))
    return [one for one in shown if one.get("stroke", one.get("fill")) != "#808080"]


def y_of(value, shape):
    return INSET + (HEIGHT - 2 * INSET) * (shape.ticks[-1] - value) / (
        shape.ticks[-1] - shape.ticks[0]
    )


def test_line_is_drawn_at_its_values():
    line = [(0.0, 0.0), (1.0, 10.0), (2.0, 5.0)]
    (drawn,) = draw(line)
    shape = frame(line)
    xs = [INSET, WIDTH / 2, WIDTH - INSET]
    expected = [(x, y_of(y, shape)) for x, (_, y) in zip(xs, line, strict=True)]
    assert [*sum(drawn["points"], ())] == pytest.approx([*sum(expected, ())], abs=0.06)


def test_each_line_has_its_color():
    red, blue = draw([(0, 0), (1, 1)], [(0, 1), (1, 0)])
    assert (red["stroke"], blue["stroke"]) == (RED, BLUE)


@pytest.mark.parametrize("gap", [math.nan, math.inf, -math.inf])
def test_nan_and_infinity_are_gaps(gap):
    drawn = draw([(0, 1), (1, 2), (2, gap), (3, 2), (4, 1)])
    assert [len(one["points"]) for one in drawn] == [2, 2]


def test_single_point_is_a_dot_in_the_middle():
    (drawn,) = draw([(5.0, 3.0)])
    assert drawn["points"] == [(WIDTH / 2, pytest.approx(HEIGHT / 2, abs=12))]
    assert drawn["d"].endswith("h0")
    assert float(drawn["stroke-width"]) > 3


def test_each_tick_has_a_grey_line():
    line = [(0.0, 0.0), (1.0, 10.0)]
    grid = elements(picture(line))[0]
    shape = frame(line)
    rows = [y for _, y in grid["points"]]
    assert rows == pytest.approx([y_of(tick, shape) for tick in reversed(shape.ticks)], abs=0.06)


def test_band_lies_between_its_lowest_and_highest_values():
    band = [(0.0, 1.0), (1.0, 2.0)], [(0.0, 3.0), (1.0, 5.0)]
    ground, line = draw([(0.0, 2.0), (1.0, 3.0)], band=band)
    shape = frame(*band)
    around = [(6, 1.0), (194, 2.0), (194, 5.0), (6, 3.0)]
    expected = [(x, y_of(y, shape)) for x, y in around]
    assert [*sum(ground["points"], ())] == pytest.approx([*sum(expected, ())], abs=0.06)
    assert float(ground["fill-opacity"]) < float(line["stroke-opacity"])


def test_picture_is_a_base64_data_url():
    address = chart.address(picture([(0, 0), (1, 1)]))
    assert re.fullmatch(r"data:image/svg\+xml;base64,[A-Za-z0-9+/=]+", address)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0.0, 1.0, (0, 0.5, 1)),
        (0.1, 2.4, (0, 1, 2, 3)),
        (-3.0, 95.0, (-50, 0, 50, 100)),
        (0.0, 30.0, (0, 10, 20, 30)),
        (5.0, 5.0, (4.5, 5, 5.5)),
        (0.05, 0.05000000000000001, (0.045, 0.05, 0.055, 0.06)),
    ],
)
def test_ticks_are_round_and_enclose_the_values(low, high, expected):
    assert chart.ticks(low, high) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("low", "high"),
    [(0.0, 0.0), (1e-320, 2e-320), (-1e300, 1e300), (1e16, 1e16 + 2), (1e-9, 1.0), (-7.3, -7.2999)],
)
def test_ticks_enclose_any_values(low, high):
    found = chart.ticks(low, high)
    assert 2 <= len(found) <= 6
    assert found[0] <= low
    assert high <= found[-1]
    assert all(map(math.isfinite, found))
    assert all(left < right for left, right in pairwise(found))


def test_importing_the_module_loads_no_heavy_module():
    code = (
        "import sys, xla_nb.views.rendering.chart\n"
        "print(*{'numpy', 'PIL', 'matplotlib', 'torch'} & {*sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )
    assert not done.stdout.strip()


def test_lines_are_drawn_in_the_given_frame_despite_float_rounding():
    line = [(0, 0.0), (1, 2.979e33)]
    shape = frame(line)
    marked = [(RED, line), (RED, [(1, shape.ticks[0]), (1, shape.ticks[-1])])]
    grid = elements(chart.svg(marked, WIDTH, HEIGHT, shape))[0]
    assert grid.get("d").count("M") == len(shape.ticks) == 4
