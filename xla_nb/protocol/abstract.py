"""Which classes are registered with which abstract ones, as by `numbers.Number.register(Mine)`.

An abstract class does not name the modules of its classes, nor they it: Python's own abstract
classes, and others that somebody knows, are asked.
"""

from __future__ import annotations

import abc
import functools
import sys
from collections.abc import Iterable
from typing import TypeGuard

#: Modules whose abstract classes the user's classes are registered with.
_MODULES = ("collections.abc", "numbers", "contextlib", "io", "os")


def is_abstract(value: object) -> TypeGuard[type]:
    """Whether classes can be registered with it."""
    return issubclass(type(value), abc.ABCMeta)


def registered(cls: type) -> list[type]:
    """The classes registered with an abstract one, in no order."""
    refs = abc._get_dump(cls)[0]  # type: ignore[attr-defined]
    return [found for ref in refs if (found := ref()) is not None]


def registrations(others: Iterable[type] = ()) -> dict[type, list[type]]:
    """For classes that are registered with one of Python's own abstract classes, or of `others`,
    these abstract classes."""
    found: dict[type, list[type]] = {}
    for one in dict.fromkeys([*_of_python(), *others]):
        for cls in registered(one):
            found.setdefault(cls, []).append(one)
    return found


def _of_python() -> list[type]:
    return [one for name in _MODULES if name in sys.modules for one in _of_module(name)]


@functools.cache
def _of_module(name: str) -> list[type]:
    return [part for part in vars(sys.modules[name]).values() if is_abstract(part)]
