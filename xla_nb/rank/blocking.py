"""Find the blocking call of the standard library that a thread is in: `time.sleep`, `Queue.get`.

A call is reported only if certain: the thread uses no processor time, and is in a C function of a
module that calls only the system. Such a function has no frame: it is found by looking up the names
in the bytecode there. A thread that waits for its device uses no time either, but is not in such a
call.
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
#: Modules in C that call the system, but no Python objects.
_SYSTEM = {
    *("time", "select", "posix", "fcntl", "_io", "_signal", "_socket", "_ssl"),
    *("_queue", "_thread", "_multiprocessing"),
}
_MOMENT = 0.0005  # seconds in which a running thread uses some processor time
#: Instructions that load a name, and those that do not change what was loaded.
_LOADS = ("LOAD_NAME", "LOAD_GLOBAL", "LOAD_FAST", "LOAD_DEREF")
_SILENT = ("PUSH_NULL", "PRECALL", "KW_NAMES")
#: Functions that may keep the dict to which a frame's variables are copied until Python 3.12.
_KEEPING = {"locals", "vars", "dir", "eval", "exec"}


class Standstill:
    """The blocking call that a thread is in, `call`, since `since` (by `time.monotonic()`); and
    the `seconds` it has been in any so far. A look that finds a call counts all time since the
    previous look, so calls between two looks count by their share on average."""

    def __init__(self, thread: int) -> None:
        self.call, self.since, self.seconds = "", 0.0, 0.0
        self._thread, self._clock = thread, time.pthread_getcpuclockid(thread)
        self._cpu, self._last_look = 0.0, time.monotonic()

    def look(self, known: str | None = None) -> None:
        """Check the thread; may be called in any thread. `known`: what it is known to do now."""
        now, cpu = time.monotonic(), time.clock_gettime(self._clock)
        if cpu != self._cpu:
            self.since = now
            if known is None and threading.get_ident() != self._thread:
                time.sleep(_MOMENT)
        is_blocked = known is None and time.clock_gettime(self._clock) == cpu
        self.call = _blocking_call(self._thread) if is_blocked else known or ""
        if self.call:
            self.seconds += now - self._last_look
        self._cpu, self._last_look = cpu, now


def _blocking_call(thread: int) -> str:
    """The outermost call of the standard library, if the thread is in a system call; else "".

    Code is analyzed while no frame is referenced, and frames only briefly: the frame of a function
    that returns meanwhile would keep its tensors, and a step's graph would have them as results."""
    frame = sys._current_frames()[thread]
    position = frame.f_code, frame.f_lasti
    del frame
    _names(*position)
    innermost = frame = sys._current_frames()[thread]
    if (frame.f_code, frame.f_lasti) != position:
        return ""
    stdlib_call = ""
    while _is_stdlib(frame.f_code.co_filename) and frame.f_back is not None:
        name = frame.f_code.co_qualname.partition(".<locals>")[0]
        stdlib_call, frame = _format_name(frame.f_globals.get("__name__", ""), name), frame.f_back
    if not frame.f_code.co_filename.startswith(_OURS):
        with contextlib.suppress(Exception):  # from any user's object
            module, name = _qualified_name(_callee(innermost))
            if module in _SYSTEM and (module != "time" or name == "sleep"):  # no clocks
                return stdlib_call or _format_name(module, name)
    return ""


def _is_stdlib(file: str) -> bool:
    return file.startswith(_STDLIB) and "-packages/" not in file


def _format_name(module: str, name: str) -> str:
    """`Queue.get` for a method, `time.sleep` for a function."""
    if "." in name and not name.startswith("_"):
        return name
    return f"{module.partition('.')[0].replace('posix', 'os')}.{name.rpartition('.')[2]}"


def _qualified_name(callee: object) -> tuple[str, str]:
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
    """The callee of the frame. Raises an exception if it cannot be found by names."""
    code = frame.f_code
    load, first, *attributes = _names(code, frame.f_lasti)
    if load == "LOAD_GLOBAL" or not code.co_flags & inspect.CO_OPTIMIZED:
        callee = frame.f_globals.get(first, frame.f_builtins.get(first))
    elif _KEEPING.isdisjoint(code.co_names):
        variables = frame.f_locals
        callee = variables[first]
        if isinstance(variables, dict):  # a copy, which would keep its values alive
            variables.clear()
    for name in attributes:
        callee = inspect.getattr_static(callee, name)
    return callee


@functools.lru_cache(maxsize=64)
def _names(code: CodeType, offset: int) -> list[str]:
    """How the code at that offset finds its callee: the instruction that loads the first name, that
    name, and those of attributes. They start where the call does; no other instruction does."""
    loads: dict[object, list[str]] = {}
    for op in dis.get_instructions(code):
        start = op.positions and (op.positions.lineno, op.positions.col_offset)
        if op.offset == offset:
            return loads.get(start, []) if "CALL" in op.opname else []
        if op.opname in ("LOAD_ATTR", "LOAD_METHOD") and start in loads:
            loads[start].append(op.argval)
        elif op.opname.startswith(_LOADS) and isinstance(op.argval, str):
            loads[start] = [op.opname, op.argval]
        elif op.opname not in _SILENT and not isinstance(op.argval, tuple):  # keyword names
            loads.pop(start, None)
    return []
