"""What ranks returned, equal results once: in saved HTML, and as lines of text."""

from __future__ import annotations

from collections.abc import Sequence

from xla_nb import ansi, wording
from xla_nb.run.sentences import Returned
from xla_nb.views.saved import bounds
from xla_nb.views.saved.style import MONO
from xla_nb.views.saved.tags import bit, code, div, escaped, faint, table

_MOST = 16  # different results that are shown
_LINE = 100  # characters of results that stand beside each other


def as_html(returned: Sequence[Returned]) -> str:
    """Empty where there is nothing; dicts of the same numbers are a table."""
    shown, more, names = _shown(returned)
    rest = div("font-size:12px", faint(more)) if more else ""
    who = [f"<b>{wording.spans(one.ranks)}</b>" for one in shown]
    if names:
        numbers = ([bit(MONO, escaped(one.numbers[name])) for one in shown] for name in names)
        rows = ((escaped(name), *row) for name, row in zip(names, numbers, strict=True))
        return table([faint("returned"), *who], rows) + rest
    each = [f"{ranks} → {code(one.text)}" for ranks, one in zip(who, shown, strict=True)]
    beside = sum(12 + len(one.text) for one in shown) <= _LINE
    inner = " · ".join(each) if beside else "".join(div("", one) for one in each)
    line = div("display:flex;gap:12px", faint("returned"), div("min-width:0", inner, rest))
    return line if each else ""


def as_text(returned: Sequence[Returned]) -> list[str]:
    """The same in lines: `[0–3] returned (4, 375)`."""
    shown, more, names = _shown(returned)
    rest = [more] if more else []
    if not names:
        return [*(one.line for one in shown), *rest]
    columns = [["returned", *map(ansi.plain, names)]]
    columns += [[f"[{wording.spans(one.ranks)}]", *one.numbers.values()] for one in shown]
    padded = ([word.ljust(max(map(len, column))) for word in column] for column in columns)
    return [*("  ".join(row).rstrip() for row in zip(*padded, strict=True)), *rest]


def _shown(returned: Sequence[Returned]) -> tuple[Sequence[Returned], str, Sequence[str]]:
    """Those that are shown, how many are not, and where all are dicts of the same numbers their
    names."""
    names = list(returned[0].numbers) if returned else []
    names = names if all(names == list(one.numbers) for one in returned) else []
    return *bounds.limited(returned, _MOST, "result"), names
