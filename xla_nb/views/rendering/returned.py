"""Render results of ranks, equal ones once, in saved HTML and as lines of text."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from xla_nb import wording
from xla_nb.run.sentences import Returned
from xla_nb.views import facts
from xla_nb.views.rendering import bounds
from xla_nb.views.rendering.style import MONO
from xla_nb.views.rendering.tags import bit, code, div, escaped, faint, table

_MOST = 16  # different results shown
_LINE = 100  # characters of results shown side by side


def as_html(returned: Sequence[Returned]) -> str:
    """Render results as HTML; empty if there are none. Dicts with the same names form a table."""
    shown, more, names = _shown(returned)
    rest = div("font-size:12px", faint(more)) if more else ""
    who = [f"<b>{wording.spans(one.ranks)}</b>" for one in shown]
    if names:
        rows = (
            [escaped(name), *(bit(MONO, escaped(w)) for w in _row(name, shown))] for name in names
        )
        return table([faint("returned"), *who], rows) + rest
    each = [f"{ranks} → {code(one.text)}" for ranks, one in zip(who, shown, strict=True)]
    beside = sum(12 + len(one.text) for one in shown) <= _LINE
    inner = " · ".join(each) if beside else "".join(div("", one) for one in each)
    line = div("display:flex;gap:12px", faint("returned"), div("min-width:0", inner, rest))
    return line if each else ""


def as_text(returned: Sequence[Returned]) -> list[str]:
    """Render results as lines: `[0–3] returned (4, 375)`."""
    shown, more, names = _shown(returned)
    rest = [more] if more else []
    if not names:
        return [*(one.line for one in shown), *rest]
    head = ["returned", *(f"[{wording.spans(one.ranks)}]" for one in shown)]
    rows = [head, *([name, *_row(name, shown)] for name in names)]
    return [*wording.aligned(rows), *rest]


def _row(name: str, shown: Sequence[Returned]) -> list[str]:
    """The values of one name: numbers with as many digits as it takes to distinguish them."""
    return facts.told_apart([one.numbers[name] for one in shown], _rounded, 6)


def _rounded(word: str, digits: int) -> str:
    with contextlib.suppress(ValueError):
        is_exact = digits > 16 or word.lstrip("-").isdecimal()
        return word if is_exact else f"{float(word):.{digits}g}"
    return word  # not a number


def _shown(returned: Sequence[Returned]) -> tuple[Sequence[Returned], str, Sequence[str]]:
    """Return the results to show, a note on the others, and the names if all are dicts with the
    same names."""
    names = list(returned[0].numbers) if returned else []
    names = names if all(names == list(one.numbers) for one in returned) else []
    return *bounds.limited(returned, _MOST, "result"), names
