"""What Tab offers behind a magic: its options, and the values of those that have a few."""

from __future__ import annotations

import argparse
import functools
import re
from collections.abc import Callable, Sequence
from typing import Any

from xla_nb.protocol.inspection import Completions
from xla_nb.run.options import LIMITS, OPTIONS, OWN, SETTINGS

#: What is offered at the end of a line, of which `symbol` is the word at the cursor.
_Offer = Callable[[str, str], list[str]]
#: What ranks have at the end of a cell's text, by the line of its %%xla.
RanksOffer = Callable[[str, str], Completions | None]
_NAME = "xla_nb"
_LIVE = re.compile(r"%%xla(\s|$)")


def turn_on(
    shell: Any,
    parsers: Sequence[argparse.ArgumentParser],
    ranks_offer: RanksOffer = lambda line, before: None,
) -> None:
    """Tell IPython's completer, once in a shell; `parsers`: those of magics with options."""
    offers: dict[str, _Offer] = {one.prog: functools.partial(_flags, one) for one in parsers}
    offers["%xla_config"] = _config
    try:
        from IPython.core.completer import context_matcher
    except ImportError:  # before 8.6: other matches come too
        dispatcher = shell.strdispatchers["complete_command"]
        for magic in offers:
            if not any(dispatcher.s_matches(magic)):
                hook = functools.partial(_of_event, offers)
                shell.set_hook("complete_command", hook, str_key=magic)
        _turn_on_in_cells(shell.Completer, ranks_offer)
    else:
        matchers = shell.Completer.custom_matchers
        if not any(getattr(one, "matcher_identifier", "") == _NAME for one in matchers):

            def matched(context: Any) -> dict[str, Any]:
                return _of_context(offers, context)

            def of_cell(context: Any) -> dict[str, Any]:
                return _of_cell(ranks_offer, context)

            matchers.append(context_matcher(identifier=_NAME)(matched))
            matchers.append(context_matcher(identifier=f"{_NAME}_ranks")(of_cell))


def _of_context(offers: dict[str, _Offer], context: Any) -> dict[str, Any]:
    """What IPython's `context_matcher` gives: nothing else is offered where these are."""
    from IPython.core.completer import SimpleCompletion

    words = _behind(offers, context.text_until_cursor, context.token)
    fitting = (word for word in words if word.startswith(context.token))
    found = [SimpleCompletion(text=word, type="magic option") for word in fitting]
    return {"completions": found, "suppress": bool(found), "ordered": True}


def _of_event(offers: dict[str, _Offer], _shell: Any, event: Any) -> list[str]:
    """What IPython's hook gives."""
    return _behind(offers, event.text_until_cursor, event.symbol)


def _behind(offers: dict[str, _Offer], line: str, symbol: str) -> list[str]:
    """What is offered behind a magic, and nothing at its own name."""
    magic, space, _ = line.lstrip().partition(" ")
    return offers[magic](line, symbol) if space and magic in offers else []


def _flags(parser: argparse.ArgumentParser, line: str, symbol: str) -> list[str]:
    """The values of the option before the cursor; else all options, unless a name begins there,
    which IPython completes itself."""
    flags = {each.option_strings[0]: each for each in parser._actions if each.option_strings}
    words = line.split()
    before = flags.get(words[-2] if line[-1:].strip() else words[-1])
    if before is not None and before.nargs != 0:
        return list(OPTIONS[before.dest].choices) if before.dest in OPTIONS else []
    return list(flags) if symbol[:1] in ("", "-") else []


def _config(line: str, symbol: str) -> list[str]:
    options = {**SETTINGS, **OWN, **LIMITS}
    name, equals, _ = line.rpartition(" ")[2].partition("=")
    if equals:
        return list(options[name].choices) if name in options else []
    return [*(f"{name}=" for name in options), "reset"]


# ---------------------------------------------------------------- what ranks offer


def _of_cell(ranks_offer: RanksOffer, context: Any) -> dict[str, Any]:
    """What ranks offer inside a %%xla cell, as IPython's `context_matcher` gives it."""
    cursor = context.cursor_line, context.cursor_position
    offered, after = _offered(ranks_offer, context.full_text, *cursor)
    return of_ranks(offered, after) if offered else {"completions": [], "suppress": False}


def _offered(
    ranks_offer: RanksOffer, text: str, number: int, column: int
) -> tuple[Completions | None, str]:
    """What ranks offer at a column of a line of a cell's text, if it is one of theirs; and what is
    behind the cursor."""
    lines = text.split("\n")
    line = lines[number] if number < len(lines) else ""
    top = top_of(text, number)
    if not top:
        return None, ""
    before = "\n".join([*lines[lines.index(top) + 1 : number], line[:column]])
    return ranks_offer(top, before), line[column:]


def top_of(text: str, number: int) -> str:
    """The line of the %%xla above a line of a cell's text; "" if there is none."""
    above = text.split("\n")[:number]
    return next((line for line in above if _LIVE.match(line)), "")


def _turn_on_in_cells(completer: Any, ranks_offer: RanksOffer) -> None:
    """Before IPython 8.6 a matcher gets the word at the cursor alone: the completer remembers what
    it was asked, once for a completer."""
    if any(getattr(one, "matcher_identifier", "") == _NAME for one in completer.custom_matchers):
        return
    completions, asked = completer.completions, [("", 0)]

    def remembering(text: str, offset: int) -> Any:
        asked[0] = text, offset
        return completions(text, offset)

    def of_cell(symbol: str) -> list[str]:
        text, offset = asked[0]
        line = text[:offset].rpartition("\n")[2]
        number = text[:offset].count("\n")
        offered, after = _offered(ranks_offer, text, number, len(line))
        return words_of_ranks(offered, symbol, after) if offered else []

    of_cell.matcher_identifier = _NAME  # type: ignore[attr-defined]
    completer.completions = remembering
    completer.custom_matchers.append(of_cell)


def of_ranks(offered: Completions, after: str = "") -> dict[str, Any]:
    """What ranks offer, as IPython's `context_matcher` gives it (from 8.6).

    after: the line behind the cursor; what is there of the end of a key is not added to it. Nothing
    else is offered for an object that the ranks know."""
    from IPython.core.completer import SimpleCompletion

    found = [
        SimpleCompletion(text=match.text + _rest(offered.closing, after), type=match.kind)
        for match in offered.matches
    ]
    if offered.knows and offered.fragment and not found:
        found = [SimpleCompletion(text=offered.fragment)]  # or the notebook's would be offered
    return {
        "completions": found,
        "matched_fragment": offered.fragment,
        "suppress": offered.knows and bool(found),
        "ordered": True,
    }


def words_of_ranks(offered: Completions, symbol: str, after: str = "") -> list[str]:
    """The same before IPython 8.6, which replaces `symbol`, the word at the cursor."""
    start = symbol.removesuffix(offered.fragment)
    return [start + match.text + _rest(offered.closing, after) for match in offered.matches]


def _rest(closing: str, after: str) -> str:
    """What of a key's end is not behind the cursor already."""
    if after.startswith(closing[:1]):
        return ""
    return closing[:-1] if after.startswith(closing[-1:]) else closing
