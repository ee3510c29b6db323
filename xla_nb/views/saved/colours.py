"""A line of output as HTML, in the colors of its ANSI codes."""

from __future__ import annotations

from html import escape

from xla_nb import ansi
from xla_nb.views.saved import bounds, tags


def coloured(line: str, longest: int) -> str:
    shown = line[:longest]
    # A line with more codes is a picture, or an attempt to fill the notebook.
    many = shown.count("\x1b") > 40
    pieces = [(ansi.Style(), ansi.plain(shown))] if many else ansi.spans(ansi.clean(shown))
    drawn = [
        tags.bit(css, escape(piece)) if (css := _css(style)) else escape(piece)
        for style, piece in pieces
    ]
    cut = [tags.gap(bounds.more(len(line) - longest))] if len(line) > longest else []
    return "".join([*drawn, *cut])


def uncoloured(line: str, longest: int) -> str:
    return escape(bounds.plain_line(line, longest))


#: The terminal's sixteen colors as mid-tones, for text on the page's own background.
_SIXTEEN = (
    "#6e6e6e",
    "#dc4c44",
    "#2f8f57",
    "#a8741a",
    "#3b82d0",
    "#b5479b",
    "#0e8a8a",
    "#8a8a8a",
    "#7c7c7c",
    "#e8635c",
    "#3a9d66",
    "#b88326",
    "#5594dc",
    "#c565ad",
    "#2a9d9d",
    "#949494",
)
_ENDS = {0: (0, 0, 0), 7: (229, 229, 229), 15: (255, 255, 255)}  # on a background of their own


def _css(style: ansi.Style) -> str:
    """The style of a piece of output, readable on any page."""
    fg, bg = (style.bg, style.fg) if style.inverse else (style.fg, style.bg)
    rules = []
    if bg is not None or style.inverse:
        ground = (104, 104, 104) if bg is None else _rgb(bg)
        ink = None if fg is None else _rgb(fg)
        if ink is None or abs(_brightness(ink) - _brightness(ground)) < 90:
            ink = (0, 0, 0) if _brightness(ground) > 140 else (255, 255, 255)
        rules += [f"color:{_hex(ink)}", f"background:{_hex(ground)}"]
    elif fg is not None:
        rules.append(f"color:{_SIXTEEN[fg] if isinstance(fg, int) else _hex(_middle(fg))}")
    rules += ["font-weight:bold"] if style.bold else []
    rules += ["opacity:.7"] if style.dim else []
    rules += ["font-style:italic"] if style.italic else []
    lines = ["underline"] * style.underline + ["line-through"] * style.strike
    rules += [f"text-decoration:{' '.join(lines)}"] if lines else []
    return ";".join(rules)


_RGB = tuple[int, int, int]


def _rgb(colour: ansi.Colour) -> _RGB:
    if isinstance(colour, tuple):
        return colour
    if colour in _ENDS:
        return _ENDS[colour]
    red, green, blue = bytes.fromhex(_SIXTEEN[colour][1:])
    return red, green, blue


def _hex(colour: _RGB) -> str:
    return f"#{bytes(colour).hex()}"


def _brightness(colour: _RGB) -> float:
    red, green, blue = colour
    return (299 * red + 587 * green + 114 * blue) / 1000


def _middle(colour: _RGB) -> _RGB:
    """The nearest color that is readable on white and on black."""
    brightness = _brightness(colour)
    if brightness > 150:
        red, green, blue = (int(part * 150 / brightness) for part in colour)
    else:
        red, green, blue = (min(255, int(part + max(0, 95 - brightness))) for part in colour)
    return red, green, blue
