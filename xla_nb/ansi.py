"""Make text from ranks safe to show: of terminal output, only characters and colors remain.

Nothing left can move, hide, link or reorder text. Any input is accepted, in one pass.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from operator import itemgetter
from typing import Any

#: 0 to 15 are the terminal's colors, which the reader's theme sets; otherwise red, green, blue.
Colour = int | tuple[int, int, int]


@dataclass(frozen=True)
class Style:
    """How a piece of text looks; None is the color of its surroundings."""

    fg: Colour | None = None
    bg: Colour | None = None
    bold: bool = False
    dim: bool = False
    italic: bool = False
    underline: bool = False
    inverse: bool = False
    strike: bool = False


_PLAIN = Style()

# The characters that `clean` replaces: controls except tab and newline, DEL and C1, marks and
# isolates that reorder text, two separators that may end a line, and surrogates, which cannot be
# encoded.
_ODD = r"\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_SGR = r"\x1b\[[0-9;:]{0,64}m"
# No alternative reads past the next escape or the end of the line, so each character is read at
# most twice. An unterminated title or link loses only its introducer, not its text.
_SPECIAL = re.compile(
    rf"""(?P<sgr>{_SGR})
    |(?P<gone>
        \x1b\[ [0-?]* [\ -/]* [@-~]?                # CSI: moves, erases, other modes
        |\x1b\] [^\x07\x1b\n]*+ (?:\x07|\x1b\\)     # OSC: titles, links, clipboard
        |\x1b[PX^_] [^\x1b\n]*+ \x1b\\              # DCS, SOS, PM, APC
        |\x1b [\ -/]* [0-~]?                        # the rest, and a lone escape
    )
    |[{_ODD}]""",
    re.VERBOSE,
)
_ANY_ODD = re.compile(f"[{_ODD}]")
_ANY_SGR = re.compile(_SGR)


def clean(text: str) -> str:
    """The text with only visible characters, tabs, newlines and colors (SGR).

    Other escape sequences are removed. Other controls become pictures (`␀`), and those that
    reorder text become names (`⟨U+202E⟩`).
    """
    return text if _ANY_ODD.search(text) is None else _SPECIAL.sub(_replace_odd, text)


def plain(text: str) -> str:
    """`clean` without colors."""
    return _ANY_SGR.sub("", clean(text))


def spans(text: str) -> list[tuple[Style, str]]:
    """Split the text where its style changes. Everything except SGR sequences is kept as it is."""
    pieces = groupby(_pieces(text), key=itemgetter(0))
    return [(style, "".join(piece for _, piece in group)) for style, group in pieces]


def _pieces(text: str) -> Iterator[tuple[Style, str]]:
    style, start = _PLAIN, 0
    for escape in _ANY_SGR.finditer(text):
        if escape.start() > start:
            yield style, text[start : escape.start()]
        style, start = _apply_sgr(style, escape.group()[2:-1]), escape.end()
    if start < len(text):
        yield style, text[start:]


def _replace_odd(match: re.Match[str]) -> str:
    if match.lastgroup is not None:
        return match.group() if match.lastgroup == "sgr" else ""
    code = ord(match.group())
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "␡"
    return "\ufffd" if code < 0xA0 or code >= 0xD800 else f"⟨U+{code:04X}⟩"


@lru_cache(maxsize=1024)
def _apply_sgr(style: Style, parameters: str) -> Style:
    """The style after one SGR sequence (ECMA-48; colors as in xterm). Forms with colons, such as
    curly underlines, are ignored."""
    numbers = iter(parameters.split(";"))
    for parameter in numbers:
        code = _number(parameter)
        if code == 0:
            style = _PLAIN
        elif code in (38, 48, 58):
            colour = _colour(numbers)
            if code != 58 and colour is not None:  # 58 is the color of the underline
                style = replace(style, fg=colour) if code == 38 else replace(style, bg=colour)
        elif code in _SWITCHES:
            style = replace(style, **_SWITCHES[code])
    return style


_SWITCHES: dict[int, dict[str, Any]] = {
    1: {"bold": True},
    2: {"dim": True},
    3: {"italic": True},
    4: {"underline": True},
    7: {"inverse": True},
    9: {"strike": True},
    21: {"underline": True},
    22: {"bold": False, "dim": False},
    23: {"italic": False},
    24: {"underline": False},
    27: {"inverse": False},
    29: {"strike": False},
    39: {"fg": None},
    49: {"bg": None},
    **{first + n: {"fg": n + bright} for first, bright in ((30, 0), (90, 8)) for n in range(8)},
    **{first + n: {"bg": n + bright} for first, bright in ((40, 0), (100, 8)) for n in range(8)},
}


def _colour(numbers: Iterator[str]) -> Colour | None:
    """The color after 38 or 48, `5;N` or `2;R;G;B`; consumes its numbers from `numbers`."""
    form = next(numbers, "")
    if form == "5":
        return _indexed_colour(_number(next(numbers, "")))
    if form == "2":
        red, green, blue = (min(_number(next(numbers, "")), 255) for _ in range(3))
        return red, green, blue
    return None


def _indexed_colour(number: int) -> Colour | None:
    if number < 16:
        return number
    if number < 232:
        red, green, blue = (number - 16) // 36, (number - 16) // 6 % 6, (number - 16) % 6
        return _STEPS[red], _STEPS[green], _STEPS[blue]
    if number < 256:
        grey = 8 + 10 * (number - 232)
        return grey, grey, grey
    return None


_STEPS = (0, 95, 135, 175, 215, 255)


def _number(digits: str) -> int:
    """Parse a parameter: 0 if omitted, -1 for forms with colons."""
    return int(digits or 0) if ":" not in digits else -1
