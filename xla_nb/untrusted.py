"""Inspect user objects that may misbehave.

`str`, `repr`, `isinstance` and even the name of a class run code that may raise anything, end the
process, or never return. A rank's outcome must survive all of it.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")

#: Time limit, in seconds, for an object's own methods; long, because the machine may be busy.
PATIENCE = 10.0


class TooLong(Exception):
    """A call did not return in time. It continues in a thread that nobody waits for."""


def within(seconds: float, work: Callable[[], T]) -> T:
    """Call `work` in a new thread; return or raise its outcome. Raises TooLong.

    If no thread can be started, there is no time limit."""
    values: list[T] = []
    problems: list[BaseException] = []

    def run() -> None:
        try:
            values.append(work())
        except BaseException as problem:
            problems.append(problem)

    thread = threading.Thread(target=run, name="xla_nb-look", daemon=True)
    try:
        thread.start()
        thread.join(seconds)
    except RuntimeError:  # the limit on threads has been reached
        run()
    if problems:
        raise problems[0]
    if not values:
        raise TooLong(f"longer than {seconds:g} s")
    return values[0]


def words(get_text: Callable[[], object], what: str, seconds: float = PATIENCE) -> str:
    """The text that `get_text` returns, or why there is none: `<its str() raised ValueError>`."""
    try:
        text = within(seconds, get_text)
    except TooLong as error:
        return f"<its {what} took {error}>"
    except BaseException as problem:
        return f"<its {what} raised {name_of(type(problem))}>"
    # For a subclass of str, such as torch's message for a worker's KeyError, only the text.
    return str.__str__(text) if issubclass(type(text), str) else f"<its {what} is not a string>"


def message_of(error: BaseException) -> str:
    """`str(error)`, made safe by `words`."""
    return words(lambda: str(error), "str()")


def name_of(kind: type) -> str:
    """A class's qualified name, whatever its metaclass says."""
    return str(type.__dict__["__qualname__"].__get__(kind))


def module_of(kind: type) -> str:
    """The name of a class's module, whatever its metaclass says."""
    name = type.__dict__["__module__"].__get__(kind)
    return name if type(name) is str else ""


def attributes(obj: object) -> dict[str, Any]:
    """The real `__dict__` of an instance, whatever its class says that it is; empty if it cannot
    have one."""
    if type.__dict__["__dictoffset__"].__get__(type(obj)) == 0:
        return {}
    get = ctypes.pythonapi.PyObject_GenericGetDict
    get.restype, get.argtypes = ctypes.py_object, (ctypes.py_object, ctypes.c_void_p)
    # ctypes would ask the object itself whether it is a py_object.
    result: dict[str, Any] = get(ctypes.py_object(obj), None)
    return result


def registered(obj: object) -> dict[str, Any]:
    """The parameters, buffers and modules of a torch module; empty for other objects."""
    attrs = attributes(obj)
    groups = (attrs.get(key) for key in ("_parameters", "_buffers", "_modules"))
    return {n: part for group in groups if isinstance(group, dict) for n, part in group.items()}


def trace_of(error: BaseException) -> TracebackType | None:
    """`error.__traceback__`, whatever its class says."""
    trace: TracebackType | None = BaseException.__dict__["__traceback__"].__get__(error)
    return trace
