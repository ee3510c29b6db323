"""Whether a class or function is defined as another is, told without its source.

A result names the notebook's classes and functions. When it is read, the notebook may hold another
one under the name, or the same text executed again.
"""

from __future__ import annotations

import functools
import hashlib
import sys
import types
from collections.abc import Iterator

_HOLDERS = {
    staticmethod: ("__func__",),
    classmethod: ("__func__",),
    property: ("fget", "fset", "fdel"),
    functools.cached_property: ("func",),
}


def fingerprint(definition: object) -> str:
    """Equal for definitions with the same code, on whichever lines they are.

    A class is its bases, slots and methods; what it holds besides is state, not definition. Each
    Python compiles differently, so its own fingerprints begin with its tag.
    """
    form = repr(_form(definition)).encode()
    return f"{sys.implementation.cache_tag} {hashlib.sha256(form).hexdigest()}"


def differ(one: str, other: str) -> bool:
    """Whether two fingerprints are of different definitions; of different Pythons, never."""
    return one != other and one.split(maxsplit=1)[0] == other.split(maxsplit=1)[0]


def _form(part: object) -> object:
    if isinstance(part, type):
        bases = [base.__qualname__ for base in part.__bases__]
        return "class", part.__qualname__, bases, vars(part).get("__slots__"), [*_members(part)]
    if isinstance(part, types.FunctionType):
        return "function", _form(part.__code__)
    if isinstance(part, types.CodeType):
        names = part.co_names, part.co_varnames, part.co_freevars, part.co_cellvars
        taken = part.co_argcount, part.co_posonlyargcount, part.co_kwonlyargcount
        return part.co_code, names, taken, [_form(constant) for constant in part.co_consts]
    if isinstance(part, frozenset):  # its order is another in each process
        return sorted(map(repr, part))
    if isinstance(part, tuple):
        return tuple(map(_form, part))
    return repr(part)


def _members(cls: type) -> Iterator[tuple[str, object]]:
    for name, part in sorted(vars(cls).items()):
        held = [getattr(part, inner) for inner in _HOLDERS.get(type(part), ())] or [part]
        code = [inner for inner in held if isinstance(inner, types.FunctionType)]
        if code:
            yield name, [_form(function) for function in code]
