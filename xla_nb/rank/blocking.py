"""The blocking call of the standard library that a thread is in: `time.sleep`, `Queue.get`.

Only what is known is said: the thread takes no processor time, and stands in a function in C of a
module that calls nobody else. Such a function has no frame: plain look-ups
of the names that the bytecode has there find it. A thread that waits for its device stands still
too, and is in no such call.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import inspect
import sys
import sysconfig
import threading
import time
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FrameType, MethodDescriptorType, ModuleType

_STDLIB, _OURS = f"{sysconfig.get_path('stdlib')}/", f"{Path(__file__).parents[1]}/"
#: Modules in C that call the system, and no objects of others.
_SYSTEM = {
    *("time", "select", "posix", "fcntl", "_io", "_signal", "_socket", "_ssl"),
    *("_queue", "_thread", "_multiprocessing"),
}
_MOMENT = 0.0005  # seconds without processor time, in which a thread that runs takes some
#: Instructions that load a name, and those that do nothing to what was loaded.
_LOADS = ("LOAD_NAME", "LOAD_GLOBAL", "LOAD_FAST", "LOAD_DEREF")
_SILENT = ("PUSH_NULL", "PRECALL", "KW_NAMES")
#: What may keep the dictionary that a frame's variables are copied into, until Python 3.12.
_KEEPING = {"locals", "vars", "dir", "eval", "exec"}


class Standstill:
    """Whether the thread that creates it is in a blocking call: `call`, since `since` (of
    `time.monotonic()`), and for how many `seconds` it was in some so far: a look that finds it in
    one counts all since the look before, so calls between two looks count by their share."""

    def __init__(self, thread: int) -> None:
        self.call, self.since, self.seconds = "", 0.0, 0.0
        self._thread, self._clock = thread, time.pthread_getcpuclockid(thread)
        self._cpu, self._looked = 0.0, time.monotonic()

    def look(self, known: str | None = None) -> None:
        """Look at it, in any thread. `known`: what it is said to do now."""
        now, cpu = time.monotonic(), time.clock_gettime(self._clock)
        if cpu != self._cpu:
            self.since = now
            if known is None and threading.get_ident() != self._thread:
                time.sleep(_MOMENT)
        stands = known is None and time.clock_gettime(self._clock) == cpu
        self.call = _call(self._thread) if stands else known or ""
        if self.call:
            self.seconds += now - self._looked
        self._cpu, self._looked = cpu, now


def _call(thread: int) -> str:
    """The outermost call of the standard library, where the thread stands in one of the system.

    Code is read while no frame is held, and frames only for a moment. That of a function that
    returns meanwhile would keep its tensors, and a step's graph would have them as results."""
    frame = sys._current_frames()[thread]
    at = frame.f_code, frame.f_lasti
    del frame
    _names(*at)
    innermost = frame = sys._current_frames()[thread]
    if (frame.f_code, frame.f_lasti) != at:
        return ""
    called = ""
    while _is_stdlib(frame.f_code.co_filename) and frame.f_back is not None:
        name = frame.f_code.co_qualname.partition(".<locals>")[0]
        called, frame = _shown(frame.f_globals.get("__name__", ""), name), frame.f_back
    if not frame.f_code.co_filename.startswith(_OURS):
        with contextlib.suppress(Exception):  # an object of the user's, whatever it is
            module, name = _named(_callee(innermost))
            if module in _SYSTEM and (module != "time" or name == "sleep"):  # not to ask the time
                return called or _shown(module, name)
    return ""


def _is_stdlib(file: str) -> bool:
    return file.startswith(_STDLIB) and "-packages/" not in file


def _shown(module: str, name: str) -> str:
    """`Queue.get` of a class, `time.sleep` of a module."""
    if "." in name and not name.startswith("_"):
        return name
    return f"{module.partition('.')[0].replace('posix', 'os')}.{name.rpartition('.')[2]}"


def _named(callee: object) -> tuple[str, str]:
    """The module and name of a function in C."""
    match callee:
        case MethodDescriptorType():
            return callee.__objclass__.__module__, callee.__qualname__
        case BuiltinFunctionType(__self__=ModuleType() as module):
            return module.__name__, callee.__qualname__
        case BuiltinFunctionType():
            return type(callee.__self__).__module__, callee.__qualname__
    return "", ""


def _callee(frame: FrameType) -> object:
    """What the frame has called. Raises an exception where names do not lead to it."""
    code = frame.f_code
    load, first, *attributes = _names(code, frame.f_lasti)
    if load == "LOAD_GLOBAL" or not code.co_flags & inspect.CO_OPTIMIZED:
        found = frame.f_globals.get(first, frame.f_builtins.get(first))
    elif _KEEPING.isdisjoint(code.co_names):
        variables = frame.f_locals
        found = variables[first]
        if isinstance(variables, dict):  # a copy, which would keep what it holds
            variables.clear()
    for name in attributes:
        found = inspect.getattr_static(found, name)
    return found


@functools.lru_cache(maxsize=64)
def _names(code: CodeType, at: int) -> list[str]:
    """How the code finds what it calls there: the instruction that loads the first name, that name,
    then those of attributes. They start where the call does, and nothing else before it does."""
    found: dict[object, list[str]] = {}
    for one in dis.get_instructions(code):
        start = one.positions and (one.positions.lineno, one.positions.col_offset)
        if one.offset == at:
            return found.get(start, []) if "CALL" in one.opname else []
        if one.opname in ("LOAD_ATTR", "LOAD_METHOD") and start in found:
            found[start].append(one.argval)
        elif one.opname.startswith(_LOADS) and isinstance(one.argval, str):
            found[start] = [one.opname, one.argval]
        elif one.opname not in _SILENT and not isinstance(one.argval, tuple):  # of keywords
            found.pop(start, None)
    return []
