"""Where in the user's program a collective was called.

A line of a notebook cell wins; otherwise the innermost line outside torch, torch_xla, the standard
library and xla_nb.
"""

from __future__ import annotations

import functools
import linecache
import os
import sys
import sysconfig
import threading
from pathlib import Path
from types import FrameType

_CELL = "Cell "
_OURS = (
    str(Path(__file__).parents[1]),
    *{sysconfig.get_path(name) for name in ("stdlib", "platstdlib")},
)
_LIBRARIES = ("torch", "torch_xla", "torchax")


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


@functools.lru_cache(maxsize=4096)
def _is_users(name: str) -> bool:
    if name.startswith("<"):  # frozen modules, code made by torch.fx and dataclasses
        return False
    parts = Path(name).parts
    if "site-packages" in parts or "dist-packages" in parts:
        after = next(i for i, part in enumerate(parts) if part.endswith("-packages")) + 1
        return after < len(parts) and parts[after] not in _LIBRARIES
    return not any(name.startswith(folder + os.sep) for folder in _OURS)
