"""What Tab offers of a rank's names, attributes and keys, without running the user's code."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping

from xla_nb.protocol.inspection import Completions, Match
from xla_nb.rank import lookup

#: So many are offered at most.
MOST = 2000
_ATTRIBUTE = re.compile(rf"({lookup.EXPRESSION})\s*\.\s*(\w*)$")
_KEY = re.compile(rf"({lookup.EXPRESSION})\s*\[\s*([\"'])([^\"']*)$")
_ANY_KEY = re.compile(rf"({lookup.EXPRESSION})\s*\[\s*$")
_NAME = re.compile(r"(?<![\w.])(\w*)$")


def complete(namespace: Mapping[str, object], text: str) -> Completions:
    """What may stand at the end of `text`, a cell up to the cursor."""
    line = text.rpartition("\n")[2]
    key = _KEY.search(line)
    if key is not None:
        expression, quote, fragment = key.groups()
        found = lookup.find(namespace, expression)
        if found is None:
            return Completions(fragment)
        offered = {name: "key" for name in lookup.keys(found[0]) if _fits_in(quote, name)}
        return Completions(fragment, _matches(offered, fragment), True, f"{quote}]")
    any_key = _ANY_KEY.search(line)
    if any_key is not None:
        found = lookup.find(namespace, any_key[1])
        offered = {repr(name): "key" for name in (lookup.keys(found[0]) if found else ())}
        return Completions("", _matches(offered, ""), bool(offered), "]")
    attribute = _ATTRIBUTE.search(line)
    if attribute is not None:
        expression, fragment = attribute.groups()
        found = lookup.find(namespace, expression)
        if found is None:
            return Completions(fragment)
        return Completions(fragment, _public(lookup.names(found[0]), fragment), True)
    name = _NAME.search(line)
    if name is None:
        return Completions()
    bound = {one: lookup.kind_of(held) for one, held in list(namespace.items()) if type(one) is str}
    return Completions(name[1], _public(bound, name[1]))


def _fits_in(quote: str, key: str) -> bool:
    """Whether a key can be written between such quotes as it is."""
    return key.isprintable() and quote not in key and "\\" not in key


def _public(names: Mapping[str, str], fragment: str) -> tuple[Match, ...]:
    """Those that begin so, sorted; names with an underscore only if it was typed, as IPython."""
    hides = not fragment.startswith("_")
    offered = {
        name: names[name]
        for name in sorted(names)
        if name.isidentifier() and not (hides and name.startswith("_"))
    }
    return _matches(offered, fragment)


def _matches(offered: Mapping[str, str], fragment: str) -> tuple[Match, ...]:
    fitting = (Match(name, kind) for name, kind in offered.items() if name.startswith(fragment))
    return tuple(itertools.islice(fitting, MOST))
