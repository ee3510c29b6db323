"""What ranks returned, equal results once: in saved HTML, and as lines of text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from xla_nb import ansi, wording
from xla_nb.run.sentences import Returned
from xla_nb.views.saved import bounds
from xla_nb.views.saved.style import MONO
from xla_nb.views.saved.tags import bit, code, div, escaped, faint, table

_GROUPS, _COLUMNS = 16, 8  # different results that are shown: one by one, and in a table
_LINE = 100  # characters of results that stand beside each other


def as_html(returned: Sequence[Returned]) -> str:
    """Empty where there is nothing; dicts of the same numbers are a table."""
    if not returned:
        return ""
    if _are_numbers(returned):
        shown, more = bounds.limited(returned, _COLUMNS, "result")
        titles = [faint("returned"), *(f"<b>{wording.spans(one.ranks)}</b>" for one in shown)]
        rows = [
            (escaped(name), *(bit(MONO, escaped(one.numbers[name])) for one in shown))
            for name in shown[0].numbers
        ]
        return table(titles, rows) + (div("font-size:12px", faint(more)) if more else "")
    shown, more = bounds.limited(returned, _GROUPS, "result")
    each = [f"<b>{wording.spans(one.ranks)}</b> → {code(one.text)}" for one in shown]
    each += [faint(more)] if more else []
    beside = sum(len(one.text) for one in shown) + 12 * len(shown) <= _LINE
    inner = " · ".join(each) if beside else "".join(div("", one) for one in each)
    return div("display:flex;gap:12px", faint("returned"), div("min-width:0", inner))


def as_text(returned: Sequence[Returned]) -> list[str]:
    """The same in lines: `[0–3] returned (4, 375)`."""
    if not returned or not _are_numbers(returned):
        shown, more = bounds.limited(returned, _GROUPS, "result")
        return [*(one.line for one in shown), *([more] if more else [])]
    shown, more = bounds.limited(returned, _COLUMNS, "result")
    columns = [["returned", *map(ansi.plain, shown[0].numbers)]]
    columns += [[f"[{wording.spans(one.ranks)}]", *one.numbers.values()] for one in shown]
    widths = [max(map(len, column)) for column in columns]
    lines = [
        "  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip()
        for row in zip(*columns, strict=True)
    ]
    return [*lines, *([more] if more else [])]


def _are_numbers(returned: Sequence[Returned]) -> bool:
    """All of them are small dicts of numbers, with the same names."""
    names = set(chain.from_iterable(one.numbers for one in returned))
    return bool(names) and all(names == one.numbers.keys() for one in returned)
