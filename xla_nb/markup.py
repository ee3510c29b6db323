"""Whether a piece of HTML closes what it opens, so that it changes nothing around it.

Pure. It knows the elements whose end a browser finds by itself, and no more of HTML than that; what
it does not understand is not closed.
"""

from __future__ import annotations

import re

#: Elements without an end.
_VOID = frozenset(
    ("area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "wbr")
)
#: Elements that end with what they are in.
_END_THEMSELVES = frozenset(
    (
        *("body", "caption", "colgroup", "dd", "dt", "head", "html", "li", "optgroup", "option"),
        *("p", "rp", "rt", "tbody", "td", "tfoot", "th", "thead", "tr"),
    )
)
#: In these `<path/>` is a whole element; in HTML `<div/>` is open.
_XML = frozenset(("svg", "math"))
#: What these have inside is text up to their end.
_TEXTS = "style|script|textarea|title|xmp|iframe|noembed|noframes"
_UNENDED = frozenset(_TEXTS.split("|"))  # where the pattern did not find the end
#: Elements in one another; browsers have a limit like this.
_DEEPEST = 500
_TOKEN = re.compile(
    rf"""<!--(?:-?>|.*?--!?>)
    | <!(?!--)[^>]*>
    | <({_TEXTS})\b[^>]*(?<!/)>.*?</\1\s*>
    | <(?P<end>/?)(?P<name>[a-z][^\s/>]*)(?:[^>"']++|"[^"]*"|'[^']*')*+>
    | (?P<cut><(?=[a-z/!?]))""",
    re.VERBOSE | re.DOTALL | re.IGNORECASE,
)


def is_closed(html: str) -> bool:
    """Whether it ends outside of tags, comments and elements, and ends none it did not open."""
    open_now: list[str] = []
    for token in _TOKEN.finditer(html):
        if token["cut"]:
            return False
        if not (name := (token["name"] or "").lower()) or name in _VOID:
            continue
        if token["end"]:
            if not _is_ended(name, open_now):
                return False
        elif not (token[0].endswith("/>") and _XML.intersection(open_now)):
            if name in _UNENDED or len(open_now) == _DEEPEST:
                return False
            open_now.append(name)
    return _END_THEMSELVES.issuperset(open_now)


def _is_ended(name: str, open_now: list[str]) -> bool:
    """End the innermost element of a name, and what ends with it; whether the page stays whole."""
    for place in reversed(range(len(open_now))):
        if open_now[place] == name:
            del open_now[place:]
            return True
        if open_now[place] not in _END_THEMSELVES:
            break
    return name in _END_THEMSELVES
