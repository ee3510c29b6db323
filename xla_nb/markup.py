"""Whether a piece of HTML closes what it opens, so that it changes nothing around it.

Pure. It knows the elements whose end a browser finds by itself, and no more of HTML than that. What
it does not understand is not closed, nor is what a browser, or a notebook that cleans HTML of
strangers, may read in two ways.
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
#: In SVG `<path/>` is a whole element. Others, as `<div/>`, end the SVG around them and are open.
_LEAVES = frozenset(
    (
        *("circle", "ellipse", "g", "image", "line", "path", "polygon", "polyline", "rect"),
        *("animate", "animatetransform", "mspace", "stop", "use"),
    )
)
#: What these have inside is text up to their end; but not in SVG, nor everywhere in tables and
#: lists. So it counts as text only where it could not be anything else.
_TEXTS = "style|script|textarea|title|xmp|iframe|noembed|noframes|noscript"
_UNENDED = frozenset((*_TEXTS.split("|"), "plaintext"))  # where the pattern did not find the end
#: Elements in one another; browsers have a limit like this.
_DEEPEST = 500
#: As HTML has them: Python's `\s` knows more.
_SPACE = r"[ \t\n\r\f]"
_ATTRIBUTES = rf"""(?:{_SPACE}++ | / | [^ \t\n\r\f"'<>/=]++
    (?:{_SPACE}*+={_SPACE}*+(?:"[^"]*+"|'[^']*+'|[^ \t\n\r\f"'<>=`]++))?+)*+"""
_TOKEN = re.compile(
    rf"""<!--(?!-?>)(?>.*?--!?>)(?<!!>)
    | <!doctype[^<>]*>
    | <({_TEXTS})(?=[ \t\n\r\f>]){_ATTRIBUTES}(?<!/)>[^<]*+</\1{_SPACE}*+>
    | <(?P<end>/?)(?P<name>[a-z][^ \t\n\r\f/<>]*+){_ATTRIBUTES}>
    | (?P<cut><(?=[a-z/!?]))""",
    re.VERBOSE | re.DOTALL | re.IGNORECASE | re.ASCII,
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
        elif not (token[0].endswith("/>") and name in _LEAVES and _in_svg(open_now)):
            if name in _UNENDED or len(open_now) == _DEEPEST:
                return False
            open_now.append(name)
    return _END_THEMSELVES.issuperset(open_now)


def _in_svg(open_now: list[str]) -> bool:
    return "svg" in open_now or "math" in open_now


def _is_ended(name: str, open_now: list[str]) -> bool:
    """End the innermost element of a name, and what ends with it; whether the page stays whole."""
    for place in reversed(range(len(open_now))):
        if open_now[place] == name:
            del open_now[place:]
            return True
        if open_now[place] not in _END_THEMSELVES:
            break
    return name in _END_THEMSELVES
