"""A line chart as a small PNG, without axis labels, which the caller sets as text.

It needs only zlib and struct: importing Pillow or matplotlib would cost the kernel up to a second
and tens of megabytes.
"""

from __future__ import annotations

import itertools
import math
import struct
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

Point = tuple[float, float]
Lines = Mapping[int, Sequence[Point]]
#: By the number of their lines: points (x, lowest, highest).
Bands = Mapping[int, Sequence[tuple[float, float, float]]]
_Layer = dict[int, float]  # by pixel: how much of what is below it shows through

#: CSS pixels between the edge and the outermost ticks and ends of lines: half the line height of a
#: label beside a tick.
INSET = 6
_GREY = "#808080"
_MOST = 15_000  # bytes of a picture at full density
_MANY = 16  # lines
_HUGE = 1e300  # beyond it differences overflow
_BAND = 0.25  # how opaque a band is


@dataclass(frozen=True)
class Frame:
    """The range of a chart: x from `left` to `right`, y between the outermost `ticks`."""

    left: float
    right: float
    ticks: tuple[float, ...]

    @property
    def low(self) -> float:
        return self.ticks[0]

    @property
    def high(self) -> float:
        return self.ticks[-1]


def frame(lines: Lines, bands: Bands = MappingProxyType({})) -> Frame | None:
    """The frame around all finite points, with round numbers; None if there are no such points."""
    points = [point for line in lines.values() for point in line if _drawable(point)]
    for band in bands.values():
        points += [(x, y) for x, *ends in band for y in ends if _drawable((x, y))]
    if not points:
        return None
    xs, ys = [x for x, _ in points], [y for _, y in points]
    return Frame(min(xs), max(xs), ticks(min(ys), max(ys)))


def ticks(low: float, high: float) -> tuple[float, ...]:
    """Three to six evenly spaced round numbers that enclose `low` and `high`."""
    if math.isclose(low, high, rel_tol=1e-12):  # the mean of equal numbers is about them
        margin = abs(low) / 10 or 1.0
        low, high = low - margin, high + margin
    step = _round_step((high - low) / 3)
    first, last = math.floor(low / step), math.ceil(high / step)
    # If floats are too coarse for the step, only the ends are left.
    if last - first < 1 or first * step == (first + 1) * step:
        return low, high
    return tuple(number * step for number in range(first, last + 1))


def png(
    lines: Lines,
    colours: Mapping[int, str],
    width: int,
    height: int,
    bands: Bands = MappingProxyType({}),
) -> bytes:
    """A chart of `width` by `height` CSS pixels; `colours` are `#rrggbb` by line, of its band too.

    The background is transparent. NaN and infinity are gaps; a single point is a dot. The picture
    has two pixels per CSS pixel, or one if there are many lines (a quarter of the time) or if
    noise would make it too large.
    """
    shape = frame(lines, bands)
    data = b""
    for density, shades in ((2, 32), (1, 12))[len(lines) > _MANY :]:
        canvas = _Canvas(width, height, density)
        if shape is not None:
            canvas.lay(_GREY, _grid(canvas, len(shape.ticks)))
            for number, band in bands.items():
                canvas.lay(colours.get(number, _GREY), _filled(band, shape, canvas))
            _draw(canvas, lines, colours, shape)
        data = canvas.png(shades)
        if len(data) <= _MOST:
            break
    return data


def _draw(canvas: _Canvas, lines: Lines, colours: Mapping[int, str], shape: Frame) -> None:
    thickness, opacity = _pen(len(lines))
    thickness *= canvas.density
    layers: dict[str, _Layer] = {}
    for number, line in lines.items():
        layer = layers.setdefault(colours.get(number, _GREY), {})
        for piece in _pieces(line, shape, canvas):
            if len(piece) == 1:
                _dot(layer, canvas, piece[0], 1.6 * thickness, opacity)
            else:
                _stroke(layer, canvas, piece, thickness, opacity)
    for colour, layer in layers.items():
        canvas.lay(colour, layer)


def _drawable(point: Point) -> bool:
    return all(abs(number) <= _HUGE for number in point)  # no NaN either


def _round_step(least: float) -> float:
    """1, 2 or 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(least)) if least > 1e-300 else 1e-300
    return next((power * m for m in (1, 2, 5) if power * m >= least * (1 - 1e-9)), power * 10)


def _pen(lines: int) -> tuple[float, float]:
    """Thickness and opacity: one outlier must be visible among many thin lines."""
    if lines <= 8:
        return 1.5, 0.9
    return (1.0, 0.6) if lines <= _MANY else (1.0, 0.4)


def _pieces(line: Sequence[Point], shape: Frame, canvas: _Canvas) -> Iterator[list[Point]]:
    """The parts of a line between gaps, in pixels, from left to right."""
    inset = canvas.inset
    across = (canvas.width - 2 * inset) / ((shape.right - shape.left) or 1.0)
    up = (canvas.height - 2 * inset) / (shape.high - shape.low)
    alone = (canvas.width - 2 * inset) / 2 if shape.left == shape.right else 0.0
    piece: list[Point] = []
    for x, y in sorted(line, key=_by_x):
        if _drawable((x, y)):
            at = inset + alone + (x - shape.left) * across
            piece.append((at, canvas.height - inset - (y - shape.low) * up))
        elif piece:
            yield piece
            piece = []
    if piece:
        yield piece


def _by_x(point: Point) -> float:
    return point[0] if abs(point[0]) <= _HUGE else -math.inf


def _grid(canvas: _Canvas, ticks: int) -> _Layer:
    inset = canvas.inset
    rows = {
        round(inset + number * (canvas.height - 2 * inset) / (ticks - 1)) for number in range(ticks)
    }
    return {column * canvas.height + row: 0.72 for column in range(canvas.width) for row in rows}


def _filled(band: Sequence[tuple[float, float, float]], shape: Frame, canvas: _Canvas) -> _Layer:
    """The ground between the lowest and the highest values, edge by edge in each column."""
    layer: _Layer = {}
    lowest, highest = ([(x, ends[side]) for x, *ends in band] for side in (0, 1))
    edges = zip(_pieces(lowest, shape, canvas), _pieces(highest, shape, canvas), strict=False)
    for below, above in edges:
        tops = {column: top for column, top, _ in _columns(above)}
        for column, _, bottom in _columns(below):
            top = tops.get(column, bottom)
            for row in range(round(top), round(bottom) + 1):
                layer[column * canvas.height + row] = 1 - _BAND
    return layer


def _stroke(
    layer: _Layer, canvas: _Canvas, points: list[Point], thickness: float, opacity: float
) -> None:
    """Draw a line through the points.

    In each column it covers the pixels from its lowest to its highest point there; pixels that
    are covered in part make the edges smooth. Where it is steep it is as thick to the sides.
    """
    half, get, through = thickness / 2, layer.get, 1 - opacity
    beside = 1 - opacity * min(half - 0.5, 1.0)
    for column, low, high in _columns(points):
        if high - low > thickness and beside < 1:
            for pixel in range(int(low), int(high) + 1):
                for side in (pixel - canvas.height, pixel + canvas.height):
                    at = column * canvas.height + side
                    layer[at] = min(get(at, 1.0), beside)
        top, bottom = low - half, high + half
        first, last = int(top), int(bottom)
        at = column * canvas.height
        start, end = at + first, at + last
        layer[start] = get(start, 1.0) * (1 - opacity * min(first + 1 - top, bottom - top))
        for pixel in range(start + 1, end):
            layer[pixel] = get(pixel, 1.0) * through
        if end > start:
            layer[end] = get(end, 1.0) * (1 - opacity * (bottom - last))


def _dot(layer: _Layer, canvas: _Canvas, at: Point, radius: float, opacity: float) -> None:
    x, y = at
    for column in range(int(x - radius), int(x + radius) + 1):
        for row in range(int(y - radius), int(y + radius) + 1):
            inside = radius + 0.5 - math.hypot(column + 0.5 - x, row + 0.5 - y)
            if inside > 0:
                pixel = column * canvas.height + row
                layer[pixel] = layer.get(pixel, 1.0) * (1 - opacity * min(inside, 1.0))


def _columns(points: list[Point]) -> Iterator[tuple[int, float, float]]:
    """The columns that a line crosses, each with its least and greatest y there."""
    column, low, high = int(points[0][0]), points[0][1], points[0][1]
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        slope = (y1 - y0) / (x1 - x0) if x1 > x0 else 0.0
        for passed in range(column, int(x1)):
            edge = y0 + slope * (passed + 1 - x0)
            yield (passed, edge, high) if edge < low else (passed, low, max(high, edge))
            low = high = edge
        column = int(x1)
        low, high = min(low, y1), max(high, y1)
    yield column, low, high


class _Canvas:
    """Red, green, blue (each times alpha) and alpha from 0 to 1, column by column."""

    def __init__(self, width: int, height: int, density: int) -> None:
        self.density = density
        self.width, self.height, self.inset = width * density, height * density, INSET * density
        self._planes = [array("f", bytes(4 * self.width * self.height)) for _ in range(4)]

    def lay(self, colour: str, layer: _Layer) -> None:
        """Lay a color over the pixels of a layer."""
        red, green, blue = (int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5))
        reds, greens, blues, alphas = self._planes
        for pixel, through in layer.items():
            cover = 1 - through
            reds[pixel] = reds[pixel] * through + red * cover
            greens[pixel] = greens[pixel] * through + green * cover
            blues[pixel] = blues[pixel] * through + blue * cover
            alphas[pixel] = alphas[pixel] * through + cover

    def png(self, shades: int) -> bytes:
        """The picture with `shades` steps from transparent to opaque."""
        return _encode(self.width, self.height, self._pixels(shades))

    def _pixels(self, shades: int) -> Iterator[bytes]:
        """Rows of bytes: red, green, blue, alpha."""
        cache: dict[tuple[int, int, int, int], bytes] = {}
        tones = shades / 255
        for row in range(self.height):
            pixels = []
            for red, green, blue, alpha in zip(
                *(plane[row :: self.height] for plane in self._planes), strict=True
            ):
                level = round(alpha * shades)
                if not level:
                    pixels.append(b"\0\0\0\0")
                    continue
                key = (
                    round(red / alpha * 255 * tones),
                    round(green / alpha * 255 * tones),
                    round(blue / alpha * 255 * tones),
                    level,
                )
                if key not in cache:
                    cache[key] = bytes(min(255, round(part / tones)) for part in key)
                pixels.append(cache[key])
            yield b"".join(pixels)


def strip(row: bytes, height: int) -> bytes:
    """A row of pixels (red, green, blue, alpha) as a picture of that height."""
    return _encode(len(row) // 4, height, [row] * height)


def _encode(width: int, height: int, rows: Iterable[bytes]) -> bytes:
    """PNG (RFC 2083) with 8 bits each for red, green, blue and alpha."""
    header = struct.pack(">IIBBBBB", width, height, 8, 6, 0, 0, 0)
    data = zlib.compress(b"".join(b"\0" + row for row in rows), 6)
    chunks = ((b"IHDR", header), (b"IDAT", data), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
        for name, body in chunks
    )
