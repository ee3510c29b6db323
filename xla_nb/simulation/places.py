"""Where in the user's program a collective was called.

A line of a notebook cell wins; otherwise the innermost line outside torch, torch_xla, the standard
library and xla_nb.
"""

from __future__ import annotations

import linecache
import sys
import sysconfig
import threading
from pathlib import Path
from types import FrameType

_CELL = "Cell "
#: Frozen modules, code made by torch.fx and dataclasses; the standard library and xla_nb.
_OTHERS = "<", f"{sysconfig.get_path('stdlib')}/", f"{Path(__file__).parents[1]}/"
_LIBRARIES = tuple(f"-packages/{name}/" for name in ("torch", "torch_xla", "torchax", "xla_nb"))


def calling_line() -> str:
    """The user's line behind this call, as `file\\tline`; "" if there is none."""
    line = _user_line(sys._getframe(1))
    return line or _other_threads_line()


def show_line(place: str) -> str:
    """The line for people, with its source text."""
    if not place:
        return "an unknown line"
    name, number = place.rsplit("\t", 1)
    text = linecache.getline(name, int(number)).strip()
    return f"{name_line(place)}: {text}" if text else name_line(place)


def name_line(place: str) -> str:
    """The line for people: `Cell In[3], line 7`."""
    name, number = place.rsplit("\t", 1)
    return f"{name}, line {number}"


def _user_line(frame: FrameType | None) -> str:
    fallback = ""
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(_CELL):
            return f"{name}\t{frame.f_lineno}"
        if not fallback and _is_users(name):
            fallback = f"{name}\t{frame.f_lineno}"
        frame = frame.f_back
    return fallback


def _other_threads_line() -> str:
    """For autograd's own thread: the line of the thread that called backward."""
    here, main = threading.get_ident(), threading.main_thread().ident
    frames = sys._current_frames()
    others = sorted(frames.keys() - {here}, key=lambda ident: ident == main)
    return next(filter(None, (_user_line(frames[ident]) for ident in others)), "")


def _is_users(name: str) -> bool:
    if "-packages/" in name:
        return not any(library in name for library in _LIBRARIES)
    return not name.startswith(_OTHERS)
