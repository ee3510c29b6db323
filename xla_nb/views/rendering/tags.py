"""Building blocks of saved HTML; text from ranks is escaped here."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import TypeVar

from xla_nb import ansi
from xla_nb.views import facts
from xla_nb.views.rendering import bounds
from xla_nb.views.rendering.style import FAINT, MONO, OUTPUT

#: Style that avoids a page break inside an element.
WHOLE = "page-break-inside:avoid"
#: Lines of a long text that are always visible, at its start and at its end.
_HEAD, _TAIL = 5, 12
#: Characters of a text that is kept on one line on a narrow page.
_SHORT = 40
_MIN_WIDTH = 18  # minimum characters per line of wrapped text
#: Attributes of the list of ranks in a panel.
LISTBOX = ' role="listbox" aria-label="Ranks"'
#: This many hidden items are not worth a click.
_FEW = 5
_Item = TypeVar("_Item")


def div(style: str, *inner: str) -> str:
    return f"<div{_styled(style)}>{''.join(inner)}</div>"


def frame(style: str, *inner: str) -> str:
    """The outermost element. Its classes keep JupyterLab (MathJax 4) and nbconvert (MathJax 2) from
    treating dollar signs as mathematics."""
    attributes = 'class="mathjax_ignore tex2jax_ignore" dir="ltr"'
    return f'<div {attributes} style="{style}">{"".join(inner)}</div>'


def bit(style: str, *inner: str) -> str:
    return f"<span{_styled(style)}>{''.join(inner)}</span>"


def _styled(style: str) -> str:
    return f' style="{style}"' if style else ""


def escaped(text: str, longest: int = 300) -> str:
    """Escape text from any source, on one line; <bdi> keeps its direction from reordering our
    text. Empty text stays empty."""
    return f"<bdi>{escape(facts.cut(text, longest))}</bdi>" if text else ""


_CODE = re.compile(r"`([^`]+)(?:`|$)")  # a text may be cut before its end


def sentence(text: str, longest: int = 600) -> str:
    """Render one of our sentences, with text in backticks as code."""
    return _CODE.sub(f'<code style="{MONO}">\\1</code>', escaped(text, longest))


_PLACE = re.compile(r"Cell In\[(\d+)\](?:, line (\d+))?")


def place(text: str, longest: int = 300, near: str = "") -> str:
    """A place in the notebook, which a panel turns into a link to that line. `near`: a cell whose
    name is omitted."""
    words = text.removeprefix(f"{near}, ") if near else text
    if not (match := _PLACE.match(text)):
        return sentence(words, longest)
    attributes = f'data-cell="{match[1]}" data-line="{match[2] or 1}"'
    nowrap = ' style="white-space:nowrap"' if len(words) <= _SHORT else ""
    return f"<span {attributes}{nowrap}>{escaped(words, longest)}</span>"


def unbroken(text: str, style: str = "") -> str:
    """Text that is not wrapped if it is short: a number stays with its unit, a date with its
    time."""
    nowrap = "white-space:nowrap" if len(text) <= _SHORT else ""
    return bit(";".join(filter(None, [style, nowrap])), escaped(text, 200))


def code(text: str, longest: int = 300) -> str:
    return bit(f"{MONO};font-size:12px", escaped(text, longest))


def chip(glyph: str, colour: str) -> str:
    """A white sign on a coloured background."""
    return bit(f"background:{colour};color:#ffffff;border-radius:4px;padding:0 5px", glyph)


def swatch(colour: str) -> str:
    """A small coloured area, beside the word it stands for."""
    return bit(f"background:{colour};border-radius:2px", "&nbsp;&nbsp;")


def mark(glyph: str, word: str, colour: str) -> str:
    return bit("white-space:nowrap", chip(glyph, colour), f" {word}")


def faint(*inner: str) -> str:
    return bit(FAINT, *inner)


#: Keeps a heading out of the notebook's table of contents, which would list every launch.
_UNLISTED = 'class="jp-toc-ignore"'


def heading(level: int, style: str, *inner: str) -> str:
    reset = "margin:0;padding:0;border:0;font-weight:normal;line-height:1.5"
    return f'<h{level} {_UNLISTED} style="{reset};{style}">{"".join(inner)}</h{level}>'


def unseen(title: str) -> str:
    """A heading for screen readers only, where a visible one would waste room."""
    return heading(
        5, "position:absolute;width:1px;height:1px;overflow:hidden;font-size:12px", title
    )


def pre(lines: Iterable[str]) -> str:
    """Preformatted lines, wrapped."""
    wrap = "overflow-wrap:break-word;word-break:normal;background:transparent;border:0"
    return f'<pre style="{OUTPUT};{wrap}">{chr(10).join(lines)}</pre>'


def boxed(lines: Sequence[str], colour: str) -> str:
    """A text of many lines; if it is long, its middle is folded."""
    return div(
        f"border-left:3px solid {colour};padding:0 10px;margin:2px 0 6px",
        in_parts(lines, pre, "lines"),
    )


def table(
    titles: Sequence[str],
    rows: Iterable[Sequence[str]],
    styles: Sequence[str] = (),
    names: Sequence[str] = (),
    marks: Sequence[str] = (),
) -> str:
    """A table of rendered cells, with the styles of its columns, by default left-aligned. A row
    with a single cell spans the whole width. Columns without content are omitted, except in a
    panel, which passes `names` of columns (CSS classes) and `marks` of rows (attributes)."""
    cell_style = "padding:2px 12px 2px 0;border:0;vertical-align:top;font-size:12px"
    classes = [f' class="xn-{name}"' for name in names] or [""] * len(titles)
    columns = zip(classes, styles or ["text-align:left"] * len(titles), strict=True)
    attrs = [f'{name} style="{cell_style};{style}"' for name, style in columns]
    body = [*rows]
    whole = (row for row in body if len(row) == len(titles))
    shown = [bool(marks) or any(column) for column in zip(*whole, strict=True)]

    def draw_row(row: Sequence[str], mark: str = "", tag: str = "td", span: str = "") -> str:
        span = span if len(row) == len(titles) else f' colspan="{sum(shown)}"'
        cells = itertools.compress(zip(attrs, row, strict=False), shown)
        inner = "".join(f"<{tag}{span}{attr}>{cell}</{tag}>" for attr, cell in cells)
        return f'<tr{mark} style="background:transparent">{inner}</tr>'

    head = draw_row([bit("font-weight:500", title) for title in titles], "", "th", ' scope="col"')
    lines = "".join(map(draw_row, body, marks or itertools.repeat("")))
    style = "border-collapse:collapse;margin:2px 0;table-layout:auto;border:0;line-height:1.5"
    listbox = LISTBOX if marks else ""
    element = f'<table style="{style}"><thead>{head}</thead><tbody{listbox}>{lines}</tbody></table>'
    return div("overflow-x:auto", element)


def at_least(longest: int) -> str:
    """The style of a column whose text may wrap, but not after every few letters."""
    return f";min-width:{min(longest, _MIN_WIDTH)}ch"


def in_parts(
    items: Sequence[_Item],
    draw: Callable[[Sequence[_Item]], str],
    noun: str,
    ends: tuple[int, int] = (_HEAD, _TAIL),
    text: Callable[[_Item], str] = str,
) -> str:
    """Draw all items; if there are many, those in the middle are folded and counted, except gaps,
    which `text` tells. Nothing scrolls inside a box, because its end would be missing on paper."""
    head, tail = ends
    middle = items[head : len(items) - tail]
    if len(middle) <= _FEW:
        return draw(items)
    # Numbers of omitted lines are shown outside the fold.
    gaps = [line for line in map(text, middle) if line.startswith(_GAP)]
    count = f"{len(middle) - len(gaps):,} more {noun}"
    notes = gaps[:2] + ([f"{_GAP}… and in {len(gaps) - 2} more files</i>"] if gaps[2:] else [])
    fold = details(faint(", ".join([count, *notes])), draw(middle))
    return draw(items[:head]) + fold + draw(items[len(items) - tail :])


def details(summary: str, inner: str, opened: bool = False, style: str = "") -> str:
    flag = " open" if opened else ""
    summary = f'<summary style="cursor:pointer">{summary}</summary>'
    return f"<details{flag}{_styled(style)}>{summary}{inner}</details>"


_GAP = "<i>"  # no line of a rank starts with this, because their text is escaped


def gap(text: str) -> str:
    return f"{_GAP}{escape(text)}</i>"


# ---------------------------------------------------------------- output, colored by ANSI codes


def coloured(line: str, longest: int) -> str:
    """Render the first `longest` characters, for a page with an unknown theme."""
    text = ansi.clean(line[:longest])
    # A line with more codes is a picture, or an attempt to fill up the notebook.
    is_plain = not 0 < text.count("\x1b") <= 40
    pieces = () if is_plain else ansi.spans(text)
    parts = [escape(ansi.plain(text))] if is_plain else []
    parts += [
        bit(rules, escape(piece)) if (rules := _css(style)) else escape(piece)
        for style, piece in pieces
    ]
    note = [gap(bounds.more(len(line) - longest))] if len(line) > longest else []
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
