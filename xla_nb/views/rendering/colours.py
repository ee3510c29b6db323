"""Render a line of output as HTML, in the colors of its ANSI codes."""

from __future__ import annotations

from html import escape

from xla_nb import ansi
from xla_nb.views.rendering import bounds, tags


def coloured(line: str, longest: int) -> str:
    """Render the first `longest` characters, for a page with an unknown theme."""
    text = ansi.clean(line[:longest])
    # A line with more codes is a picture, or an attempt to fill up the notebook.
    is_plain = not 0 < text.count("\x1b") <= 40
    pieces = () if is_plain else ansi.spans(text)
    parts = [escape(ansi.plain(text))] if is_plain else []
    parts += [
        tags.bit(rules, escape(piece)) if (rules := _css(style)) else escape(piece)
        for style, piece in pieces
    ]
    note = [tags.gap(bounds.more(len(line) - longest))] if len(line) > longest else []
    return "".join([*parts, *note])


def uncoloured(line: str, longest: int) -> str:
    return escape(bounds.plain_line(line, longest))


#: The terminal's colors as mid-tones; bright colors use the tone of the plain ones.
_PALETTE = (
    "#6e6e6e",
    "#dc4c44",
    "#2f8f57",
    "#a8741a",
    "#3b82d0",
    "#b5479b",
    "#0e8a8a",
    "#8a8a8a",
)
_TINT = "40"  # a quarter opaque
_GREY = (128, 128, 128)  # for inverse text without a color


def _css(style: ansi.Style) -> str:
    """Style a piece of output, readable on any page: the color of its background, else of its text,
    becomes a tint behind it, because no text color is readable on both white and black."""
    fg, bg = (style.bg, style.fg) if style.inverse else (style.fg, style.bg)
    colour = fg if bg is None else bg
    rules = []
    if colour is not None or style.inverse:
        tint = _PALETTE[colour % 8] if isinstance(colour, int) else _hex(colour or _GREY)
        rules.append(f"background:{tint}{_TINT}")
    rules += ["font-weight:bold"] if style.bold else []
    rules += ["opacity:.75"] if style.dim else []
    rules += ["font-style:italic"] if style.italic else []
    lines = ["underline"] * style.underline + ["line-through"] * style.strike
    rules += [f"text-decoration:{' '.join(lines)}"] if lines else []
    return ";".join(rules)


def _hex(colour: tuple[int, int, int]) -> str:
    return f"#{bytes(colour).hex()}"
