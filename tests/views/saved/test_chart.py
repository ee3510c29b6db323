"""Charts, checked in the pixels of the decoded picture."""

import math
import os
import struct
import subprocess
import sys
import zlib
from itertools import pairwise

import pytest

from xla_nb.views.saved import chart
from xla_nb.views.saved.chart import INSET

WIDTH, HEIGHT = 200, 80
DENSITY = 2
RED, BLUE = "#e04040", "#4060e0"
Pixel = tuple[int, int, int, int]


def decode(data: bytes) -> list[list[Pixel]]:
    """The rows of an unfiltered 8-bit RGBA picture; checks every chunk's sum."""
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    chunks, at = {}, 8
    while at < len(data):
        (length,) = struct.unpack_from(">I", data, at)
        name, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        assert struct.unpack_from(">I", data, at + 8 + length) == (zlib.crc32(name + body),)
        chunks[name], at = body, at + 12 + length
    width, height, *form = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert form == [8, 6, 0, 0, 0]
    raw = zlib.decompress(chunks[b"IDAT"])
    stride = 1 + 4 * width
    assert len(raw) == stride * height
    rows = [raw[row * stride : (row + 1) * stride] for row in range(height)]
    assert {row[0] for row in rows} == {0}
    return [[tuple(row[i : i + 4]) for i in range(1, stride, 4)] for row in rows]


def draw(lines: chart.Lines, colours: dict[int, str] | None = None) -> list[list[Pixel]]:
    return decode(chart.png(lines, colours or dict.fromkeys(lines, RED), WIDTH, HEIGHT))


def is_red(pixel: Pixel) -> bool:
    return pixel[3] > 60 and pixel[0] > 1.5 * pixel[2]


def is_blue(pixel: Pixel) -> bool:
    return pixel[3] > 60 and pixel[2] > 1.5 * pixel[0]


def row_of(value: float, shape: chart.Frame) -> float:
    height = (HEIGHT - 2 * INSET) * DENSITY
    return INSET * DENSITY + height * (shape.high - value) / (shape.high - shape.low)


def rows(picture: list[list[Pixel]], column: int) -> list[int]:
    return [row for row, pixels in enumerate(picture) if is_red(pixels[column])]


def test_a_picture_has_two_pixels_per_css_pixel() -> None:
    picture = draw({0: [(0, 0), (1, 1)]})
    assert (len(picture[0]), len(picture)) == (DENSITY * WIDTH, DENSITY * HEIGHT)


def test_another_png_decoder_agrees() -> None:
    image = pytest.importorskip("PIL.Image")
    import io

    data = chart.png({0: [(0, 0), (1, 5), (2, 1)]}, {0: RED}, WIDTH, HEIGHT)
    opened = image.open(io.BytesIO(data))
    flat = [pixel for row in decode(data) for pixel in row]
    assert opened.tobytes() == b"".join(map(bytes, flat))


def test_a_line_is_where_its_values_are() -> None:
    line = [(float(x), math.sin(x / 8)) for x in range(100)]
    picture, shape = draw({0: line}), chart.frame({0: line})
    assert shape is not None
    across = (WIDTH - 2 * INSET) * DENSITY
    for x, y in line[1:-1]:
        found = rows(picture, INSET * DENSITY + int(x / 99 * across))
        assert abs(sum(found) / len(found) + 0.5 - row_of(y, shape)) < 2.5


def test_a_steep_line_has_no_holes() -> None:
    picture = draw({0: [(0, 0), (50, 0), (51, 1000), (100, 0)]})
    columns = range(INSET * DENSITY, (WIDTH - INSET) * DENSITY)
    found = [rows(picture, column) for column in columns]
    assert all(found)
    for left, right in pairwise(found):
        assert min(left) <= max(right) + 1
        assert min(right) <= max(left) + 1


def test_a_steep_line_is_as_thick_as_a_flat_one() -> None:
    steep = draw({0: [(0, 100.0), (1, 0.0), (100, 0.0)]})
    flat = len(rows(steep, WIDTH))
    for row in range(INSET * DENSITY + 10, HEIGHT * DENSITY - INSET * DENSITY - 10):
        assert sum(is_red(pixel) for pixel in steep[row]) >= flat - 1, row


def test_edges_are_smooth() -> None:
    picture = draw({0: [(0, 0), (1, 1)]})
    column = [pixels[WIDTH] for pixels in picture]
    assert any(10 < alpha < 200 for *_, alpha in column if alpha)


def test_each_line_has_its_color() -> None:
    picture = draw({0: [(0, 0), (1, 0)], 1: [(0, 10), (1, 10)]}, {0: RED, 1: BLUE})
    column = [pixels[WIDTH] for pixels in picture]
    reds = [row for row, pixel in enumerate(column) if is_red(pixel)]
    blues = [row for row, pixel in enumerate(column) if is_blue(pixel)]
    assert reds
    assert blues
    assert max(blues) < min(reds)  # ten is above zero


@pytest.mark.parametrize("gap", [math.nan, math.inf, -math.inf, 1e305])
def test_nan_and_infinity_are_gaps(gap: float) -> None:
    picture = draw({0: [(float(x), gap if 40 <= x <= 60 else 1.0) for x in range(101)]})
    across = (WIDTH - 2 * INSET) * DENSITY
    drawn = [bool(rows(picture, INSET * DENSITY + int(across * x))) for x in (0.2, 0.5, 0.8)]
    assert drawn == [True, False, True]


def test_a_single_point_is_a_dot_in_the_middle() -> None:
    picture = draw({0: [(7, 3)]})
    found = [
        (x, y)
        for y, pixels in enumerate(picture)
        for x, pixel in enumerate(pixels)
        if is_red(pixel)
    ]
    xs, ys = {x for x, _ in found}, {y for _, y in found}
    assert 4 <= len(xs) <= 14
    assert 4 <= len(ys) <= 14
    assert abs(sum(xs) / len(xs) + 0.5 - WIDTH) < 1


def test_the_order_of_points_does_not_matter() -> None:
    line = [(float(x), float(x * x)) for x in range(20)]
    assert draw({0: line}) == draw({0: line[::-1]})


def test_the_background_is_transparent() -> None:
    picture = draw({0: [(0, 0), (1, 0.01)]})
    assert picture[0][0] == (0, 0, 0, 0)


def test_there_is_a_gray_line_at_each_tick() -> None:
    lines = {0: [(0.0, 0.0), (1.0, 30.0)]}
    picture, shape = draw(lines), chart.frame(lines)
    assert shape is not None
    greys = {row for row, pixels in enumerate(picture) if pixels[0][3]}
    assert {round(row_of(tick, shape)) for tick in shape.ticks} == greys


@pytest.mark.parametrize("lines", [{}, {0: []}, {0: [(1.0, math.nan)]}])
def test_lines_without_points_are_an_empty_picture(lines: chart.Lines) -> None:
    assert chart.frame(lines) is None
    assert {pixel for pixels in draw(lines) for pixel in pixels} == {(0, 0, 0, 0)}


def noisy(rank: int, noise: float) -> list[tuple[float, float]]:
    return [
        (float(x), 3 / (1 + x / 40) + noise * math.sin(x * (rank + 3) * 1.7)) for x in range(400)
    ]


@pytest.mark.parametrize("ranks", [1, 8, 16, 256])
@pytest.mark.parametrize("noise", [0.1, 10.0])
def test_a_picture_of_many_lines_is_small(ranks: int, noise: float) -> None:
    lines = {rank: noisy(rank, noise) for rank in range(ranks)}
    colours = {rank: f"#{rank % 8 * 0x0A1B2C:06x}" for rank in lines}
    assert len(chart.png(lines, colours, 350, 96)) <= 15_000


def test_one_outlier_among_many_lines_is_visible() -> None:
    lines = {rank: [(0.0, 0.0), (1.0, 0.0)] for rank in range(255)}
    picture = draw(lines | {255: [(0.0, 9.0), (1.0, 9.0)]})
    assert (len(picture[0]), len(picture)) == (WIDTH, HEIGHT)  # very many: one pixel for one
    above = round(INSET + (HEIGHT - 2 * INSET) / 10)  # the ticks end at ten
    assert any(is_red(pixels[WIDTH // 2]) for pixels in picture[above - 2 : above + 3])


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
def test_ticks_are_round_and_enclose_the_values(
    low: float, high: float, expected: tuple[float, ...]
) -> None:
    assert chart.ticks(low, high) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("low", "high"),
    [(0.0, 0.0), (1e-320, 2e-320), (-1e300, 1e300), (1e16, 1e16 + 2), (1e-9, 1.0), (-7.3, -7.2999)],
)
def test_ticks_enclose_any_values(low: float, high: float) -> None:
    found = chart.ticks(low, high)
    assert 2 <= len(found) <= 6
    assert found[0] <= low
    assert high <= found[-1]
    assert all(map(math.isfinite, found))
    assert all(left < right for left, right in pairwise(found))


def test_importing_the_module_loads_no_heavy_module() -> None:
    code = (
        "import sys, xla_nb.views.saved.chart\n"
        "print(*{'numpy', 'PIL', 'matplotlib', 'torch'} & {*sys.modules})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ
    )
    assert not done.stdout.strip()


# ---------------------------------------------------------------- bands and strips


def test_a_band_lies_between_its_lowest_and_highest_values() -> None:
    line = {0: [(0.0, 5.0), (100.0, 5.0)]}
    bands = {0: [(0.0, 2.0, 8.0), (100.0, 2.0, 8.0)]}
    picture = decode(chart.png(line, {0: RED}, WIDTH, HEIGHT, bands))
    shape = chart.frame(line, bands)
    assert shape is not None
    assert shape.low <= 2.0 and shape.high >= 8.0
    pixels = [row[WIDTH * DENSITY // 2] for row in picture]
    tinted = [n for n, p in enumerate(pixels) if p[3] > 40 and p[0] > 1.5 * p[2]]
    assert abs(tinted[0] - row_of(8.0, shape)) < 3
    assert abs(tinted[-1] - row_of(2.0, shape)) < 3
    assert tinted == list(range(tinted[0], tinted[-1] + 1))
    assert pixels[round(row_of(5.0, shape))][3] > 2 * pixels[round(row_of(7.0, shape))][3]


def test_a_strip_is_its_colours_from_left_to_right() -> None:
    row = [(0xE0, 0x40, 0x40, 255), (0, 0, 0, 0), (0x40, 0x60, 0xE0, 255)]
    assert decode(chart.strip(bytes(part for pixel in row for part in pixel), 2)) == [row] * 2
