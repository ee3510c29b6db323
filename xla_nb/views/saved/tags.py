"""The pieces of saved HTML; text from ranks is escaped here."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from xla_nb.views import facts
from xla_nb.views.saved.style import FAINT, MONO


def div(style: str, *inner: str) -> str:
    return f"<div{_styled(style)}>{''.join(inner)}</div>"


def bit(style: str, *inner: str) -> str:
    return f"<span{_styled(style)}>{''.join(inner)}</span>"


def _styled(style: str) -> str:
    return f' style="{style}"' if style else ""


def escaped(text: str, longest: int = 300) -> str:
    """Text from anywhere, on one line; <bdi> keeps its direction from reordering ours."""
    return f"<bdi>{escape(facts.cut(text, longest))}</bdi>"


def code(text: str, longest: int = 300) -> str:
    return bit(f"{MONO};font-size:12px", escaped(text, longest))


def mark(glyph: str, word: str, colour: str) -> str:
    return bit(f"color:{colour};font-weight:600;white-space:nowrap", f"{glyph} {word}")


def faint(*inner: str) -> str:
    return bit(FAINT, *inner)


def section(title: str, *inner: str) -> str:
    heading = div(f"margin:14px 0 5px;font-size:12px;font-weight:600;{FAINT}", title)
    return heading + "".join(inner)


def pre(lines: Iterable[str], edge: str, small: bool = False) -> str:
    """A box that scrolls, with long lines wrapped; `small` is for hundreds of boxes."""
    style = f"white-space:pre-wrap;border-left:3px solid {edge}"
    if small:
        style += ";margin:0;padding-left:8px"
    else:
        style += (
            ";font:12px/1.45 ui-monospace,Menlo,Consolas,monospace;word-break:normal;overflow:auto;"
            "max-height:30em;margin:4px 0 8px;padding:6px 10px;background:#80808014"
        )
    return f'<pre style="{style}">{chr(10).join(lines)}</pre>'


def details(summary: str, inner: str, opened: bool) -> str:
    return f"<details{' open' if opened else ''}><summary>{summary}</summary>{inner}</details>"


def gap(text: str) -> str:
    return f"<i>{escape(text)}</i>"
