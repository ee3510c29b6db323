"""The picture of a placed model: which device holds which part of which tensor.

Plain data, without torch, because it is made where the devices are and unpickled in the notebook.
Every part names its devices in text, so reading it needs no color.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from xla_nb.wording import several

Region = tuple[tuple[int, int], ...]

_TENSORS = 60  # drawn at most; identical ones count once
_LINE = 98  # characters in a terminal
_SANS = "font-family:system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif"
_MONO = "font-family:ui-monospace,Menlo,Consolas,monospace"
# Mid-tones that stand out on white and on black, used as translucent backgrounds.
_HUES = ("#4081d2", "#c26030", "#319751", "#a960ae", "#0096a8", "#ab7400", "#806fcd", "#c55865")


@dataclass(frozen=True)
class Part:
    """A region of a tensor, (start, stop) along each dimension, and the devices that hold it."""

    devices: tuple[int, ...]
    region: Region

    @property
    def holders(self) -> str:
        if len(self.devices) > 8 and self.devices == tuple(
            range(self.devices[0], self.devices[-1] + 1)
        ):
            return f"{self.devices[0]} to {self.devices[-1]}"
        return " ".join(map(str, self.devices))

    @property
    def extent(self) -> str:
        if any(start == stop for start, stop in self.region):
            return "nothing"
        return "[" + ", ".join(f"{start}:{stop}" for start, stop in self.region) + "]"


@dataclass(frozen=True)
class Drawing:
    """One tensor and its parts."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    bytes_per_device: int
    parts: tuple[Part, ...]
    count: int = 1  # tensors like this one

    @property
    def title(self) -> str:
        return f"{self.name} ({self.count} like this)" if self.count > 1 else self.name

    @property
    def facts(self) -> str:
        shape = "x".join(map(str, self.shape)) or "scalar"
        copies = f", {len(self.parts[0].devices)} copies" if len(self.parts[0].devices) > 1 else ""
        parts = "whole" if len(self.parts) == 1 else f"{len(self.parts)} parts"
        each = readable(self.bytes_per_device)
        return f"{shape} {self.dtype}, {parts}{copies}, {each} on each device"

    def rows(self) -> list[list[Part]]:
        """The parts as a table; parts along further dimensions follow each other in a row."""
        split = [
            dim for dim in range(len(self.shape)) if len({p.region[dim] for p in self.parts}) > 1
        ]
        down = split[0] if len(split) > 1 else split[0] if split and split[0] == 0 else None
        if len(self.shape) < 2:
            down = None
        if down is None:
            return [sorted(self.parts, key=lambda part: part.region)]
        starts = sorted({part.region[down] for part in self.parts})
        ordered = sorted(self.parts, key=lambda part: part.region)
        return [[part for part in ordered if part.region[down] == start] for start in starts]


@dataclass(frozen=True)
class Picture:
    """Which device holds which part: a notebook displays it, a terminal prints it."""

    drawings: tuple[Drawing, ...]

    def _repr_mimebundle_(self, include: object = None, exclude: object = None) -> dict[str, str]:
        return {"text/html": self.html(), "text/plain": str(self)}

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        shown, left = self._shown()
        lines = [self._head()]
        for drawing in shown:
            lines += ["", drawing.title, drawing.facts, *_box(drawing)]
        return "\n".join([*lines, *([f"\n{left}"] if left else [])])

    def html(self) -> str:
        shown, left = self._shown()
        tail = f'<div style="opacity:.72;margin-top:8px">{escape(left)}</div>' if left else ""
        return (
            f'<div style="{_SANS};font-size:13px;line-height:1.4">'
            f'<div style="opacity:.72;margin:2px 0 6px">{escape(self._head())}</div>'
            f"{''.join(map(_html, shown))}{tail}</div>"
        )

    def _head(self) -> str:
        devices = {device for each in self.drawings for p in each.parts for device in p.devices}
        held = sum(drawing.bytes_per_device for drawing in self.drawings)
        number = several(len(devices), "device")
        return f"{number}, {readable(held)} on each. Each part lists the devices that hold it."

    def _shown(self) -> tuple[list[Drawing], str]:
        drawings = list(_grouped(self.drawings))
        left = len(drawings) - _TENSORS
        return drawings[:_TENSORS], f"and {left} more, not drawn" if left > 0 else ""


def readable(size: int) -> str:
    """A number of bytes in a suitable unit."""
    amount = float(size)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.4g} {unit}"
        amount /= 1024
    return f"{amount:.4g} GiB"


def _grouped(drawings: tuple[Drawing, ...]) -> Iterator[Drawing]:
    """Tensors of repeated layers with the same placement as one drawing, `*` for the number."""
    groups: dict[tuple[str, object, object, object], list[Drawing]] = {}
    for each in drawings:
        pattern = re.sub(r"(?<![^.])\d+(?![^.])", "*", each.name)
        groups.setdefault((pattern, each.shape, each.dtype, each.parts), []).append(each)
    for (pattern, *_), (first, *others) in groups.items():
        name = pattern if others else first.name
        yield Drawing(
            name,
            first.shape,
            first.dtype,
            first.bytes_per_device,
            first.parts,
            1 + len(others),
        )


def _box(drawing: Drawing) -> Iterator[str]:
    width = max(len(text) for part in drawing.parts for text in (part.holders, part.extent)) + 2
    rows = [some for row in drawing.rows() for some in _broken(row, max(1, _LINE // (width + 1)))]
    for number, row in enumerate(rows):
        left, middle, right = "├┼┤" if number else "┌┬┐"
        yield left + middle.join(["─" * width] * len(row)) + right
        for texts in ([part.holders for part in row], [part.extent for part in row]):
            yield "│" + "│".join(f" {text}".ljust(width) for text in texts) + "│"
    yield "└" + "┴".join(["─" * width] * len(rows[-1])) + "┘"


def _broken(row: list[Part], most: int) -> list[list[Part]]:
    """A row too long for a line as several rows of equal length."""
    size = next(n for n in range(min(most, len(row)), 0, -1) if len(row) % n == 0)
    return [row[start : start + size] for start in range(0, len(row), size)]


def _html(drawing: Drawing) -> str:
    rows = "".join(
        f'<div style="display:flex">{"".join(map(_cell, row))}</div>' for row in drawing.rows()
    )
    return (
        '<div style="margin:8px 0 12px">'
        f'<div><span style="{_MONO};font-weight:600">{escape(drawing.title)}</span> '
        f'<span style="opacity:.72">{escape(drawing.facts)}</span></div>'
        '<div style="display:inline-block;border:1px solid #808080;margin-top:3px;max-width:100%;'
        f'overflow:auto">{rows}</div></div>'
    )


def _cell(part: Part) -> str:
    hue = _HUES[part.devices[0] % len(_HUES)]
    return (
        f'<div style="flex:1 0 auto;min-width:5em;padding:3px 8px;border:1px solid #80808080;'
        f'background:{hue}33;text-align:center">'
        f'<div style="font-weight:600">{escape(part.holders)}</div>'
        f'<div style="{_MONO};font-size:11px;opacity:.8">{escape(part.extent)}</div></div>'
    )
