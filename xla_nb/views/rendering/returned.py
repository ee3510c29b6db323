"""Render results of ranks, equal ones once, in saved HTML and as lines of text."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from xla_nb import wording
from xla_nb.monitor.sentences import Returned
from xla_nb.views import facts
from xla_nb.views.rendering import bounds
from xla_nb.views.rendering.style import MONO
from xla_nb.views.rendering.tags import bit, code, div, escaped, faint, table

_MOST = 16  # different results shown
_LINE = 100  # characters of results shown side by side


def as_html(returned: Sequence[Returned]) -> str:
    """Render results as HTML; empty if there are none. Dicts with the same names form a table."""
    shown, note, names = _select(returned)
    footer = div("font-size:12px", faint(note)) if note else ""
    heads = [f"<b>{wording.spans(result.ranks)}</b>" for result in shown]
    if names:
        rows = (
            [escaped(name), *(bit(MONO, escaped(v)) for v in _row(name, shown))] for name in names
        )
        return table([faint("returned"), *heads], rows) + footer
    lines = [f"{ranks} → {code(result.text)}" for ranks, result in zip(heads, shown, strict=True)]
    fits = sum(12 + len(result.text) for result in shown) <= _LINE
    inner = " · ".join(lines) if fits else "".join(div("", result) for result in lines)
    line = div("display:flex;gap:12px", faint("returned"), div("min-width:0", inner, footer))
    return line if lines else ""


def as_text(returned: Sequence[Returned]) -> list[str]:
    """Render results as lines: `[0–3] returned (4, 375)`."""
    shown, note, names = _select(returned)
    notes = [note] if note else []
    if not names:
        return [*(result.line for result in shown), *notes]
    head = ["returned", *(f"[{wording.spans(result.ranks)}]" for result in shown)]
    rows = ([name, *_row(name, shown)] for name in names)
    return [*wording.aligned(head, rows), *notes]


def _row(name: str, shown: Sequence[Returned]) -> list[str]:
    """The values of one name: numbers with as many digits as it takes to distinguish them."""
    return facts.told_apart([result.numbers[name] for result in shown], _rounded, 6)


def _rounded(text: str, digits: int) -> str:
    with contextlib.suppress(ValueError):
        value = float(text)
        is_exact = digits > 16 or len(text) <= 8 or abs(value) >= 1e5  # no fraction looks like none
        return text if is_exact else f"{value:.{digits}g}"
    return text  # not a number


def _select(returned: Sequence[Returned]) -> tuple[Sequence[Returned], str, Sequence[str]]:
    """Return the results to show, a note on the others, and the names if all are dicts with the
    same names."""
    names = list(returned[0].numbers) if returned else []
    names = names if all(names == list(result.numbers) for result in returned) else []
    return *bounds.limited(returned, _MOST, "result"), names
