"""Format an exception of user code as a traceback of the notebook.

Frames of xla_nb and of libraries that call the user's function are cut from the top; everything
that user code called is kept.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise, takewhile
from pathlib import Path
from types import FrameType, TracebackType

from xla_nb import untrusted

_PACKAGE = __package__.partition(".")[0]
_OURS = Path(__file__).parents[1]
_DEVICE = _OURS / "simulation"
#: Most frames of a stack that are shown, counting equal consecutive frames as one, as Python does;
#: and most that are read. A recursion error would fill the page.
DEPTH, _DEEPEST = 60, 10_000
_FORWARDED = "(*args, **kwargs)"  # in the line of a wrapper that passes its own arguments on


@dataclass(frozen=True)
class Told:
    """An error as text. `place` is its innermost notebook line; `where` identifies the failure."""

    kind: str
    message: str
    text: str
    place: str
    where: str


def tell(error: BaseException, labels: Container[str]) -> Told:
    """The error with its traceback, starting at the first frame of the notebook.

    If formatting it, or an error that it was raised from, raises or hangs: only its own type,
    message and frames."""
    trace = untrusted.trace_of(error)
    message = untrusted.message_of(error)
    if not message.startswith("<its str()"):
        try:
            return untrusted.within(
                untrusted.PATIENCE, lambda: _format_in_full(error, trace, message, labels)
            )
        except BaseException:
            pass
    frames = _user_frames(traceback.extract_tb(trace, limit=-_DEEPEST), labels)
    name = _name(type(error))
    text = "".join(["Traceback (most recent call last):\n", *frames.format(), name, ": ", message])
    return Told(name, message, text, place_in(frames, labels), _where(name, frames))


def _format_in_full(
    error: BaseException, trace: TracebackType | None, message: str, labels: Container[str]
) -> Told:
    cls = type(error)
    ours, name = _is_ours(cls), _name(cls)
    summary = traceback.TracebackException(cls, error, trace, limit=-_DEEPEST)
    if ours:  # the place in xla_nb does not help the user
        summary.stack = traceback.StackSummary.from_list(
            [frame for frame in summary.stack if not _is_our_frame(frame)]
        )
        summary.__cause__ = summary.__context__ = None
    _cut(summary, labels)
    frames = summary.stack
    text = "".join(summary.format()).rstrip()
    if ours:
        text = text.replace(f"{cls.__module__}.{name}", name)
    return Told(name, message, text, place_in(frames, labels), _where(name, frames))


def _cut(summary: traceback.TracebackException, labels: Container[str]) -> None:
    """Remove frames that are not the user's, also from causes: JAX gives its causes the whole stack
    of the process, and an interrupt is raised by us."""
    todo: list[traceback.TracebackException | None] = [summary]
    seen = set[int]()
    while todo:
        error = todo.pop()
        if error is not None and id(error) not in seen:
            seen.add(id(error))
            error.stack = _user_frames(error.stack, labels)
            todo += [error.__cause__, error.__context__]


def _is_ours(cls: type) -> bool:
    return untrusted.module_of(cls).partition(".")[0] == _PACKAGE


def _name(cls: type) -> str:
    """The name as in Python's tracebacks, but without the module for xla_nb's errors."""
    name, module = untrusted.name_of(cls), untrusted.module_of(cls)
    return name if _is_ours(cls) or module in ("builtins", "__main__") else f"{module}.{name}"


def _where(name: str, frames: traceback.StackSummary) -> str:
    places = groupby(f"{frame.filename}:{frame.lineno}" for frame in frames)
    return "\n".join([name, *(place for place, _ in places)])


def locate(thread: int, labels: Container[str]) -> tuple[str, str]:
    """A thread's innermost notebook line, and its stack, without frames of xla_nb at its end and
    what the simulated device calls."""
    frame: FrameType | None = sys._current_frames().get(thread)
    if frame is None:
        return "", f"thread {thread} has ended"
    summary = traceback.extract_stack(frame, limit=DEPTH)
    first = next((n for n, entry in enumerate(summary) if entry.filename in labels), 0)
    of_program = takewhile(
        lambda entry: _DEVICE not in Path(entry.filename).parents, summary[first:]
    )
    kept = _without_watchers(_before_ours(of_program) or summary[first:])
    return place_in(kept, labels), "".join(kept.format()).rstrip()


def place_in(frames: traceback.StackSummary, labels: Container[str]) -> str:
    """The innermost line of the notebook in a stack, `Cell In[3], line 7`, or an empty string."""
    cells = [frame for frame in frames if frame.filename in labels]
    return f"{cells[-1].filename}, line {cells[-1].lineno}" if cells else ""


def innermost(thread: int, labels: Container[str]) -> str:
    """A thread's innermost line of the notebook, `Cell In[3], line 7`, or an empty string."""
    frame: FrameType | None = sys._current_frames().get(thread)
    while frame is not None and frame.f_code.co_filename not in labels:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}, line {frame.f_lineno}" if frame else ""


def is_in_ours(thread: int) -> bool:
    """Whether a thread is in code of this package, called by the function that it runs, or after
    that function has returned."""
    frame = sys._current_frames().get(thread)
    return frame is not None and frame.f_code.co_filename.startswith(f"{_OURS}/")


def _is_our_frame(frame: traceback.FrameSummary) -> bool:
    """Whether a frame is of this package, or of cloudpickle, which works for it."""
    path = Path(frame.filename)
    return _OURS in path.parents or path.name == "cloudpickle.py"


def _before_ours(frames: Iterable[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    """The frames without our innermost ones."""
    kept = list(frames)
    while kept and _is_our_frame(kept[-1]):
        kept.pop()
    return kept


def _without_watchers(frames: Sequence[traceback.FrameSummary]) -> traceback.StackSummary:
    """Remove frames of wrappers that watch a program's loops, loaders and operations, and those of
    torch that call the wrappers: a plain program has none. An innermost frame that does more than
    pass a call on is at fault, and stays."""
    kept: list[traceback.FrameSummary] = []
    for frame in frames:
        is_at_fault = frame is frames[-1] and _FORWARDED not in (frame.line or "")
        if is_at_fault or _OURS / "rank" not in Path(frame.filename).parents:
            kept.append(frame)
        elif kept and kept[-1].name == "handle_torch_function":
            del kept[-2:]  # and its caller, which is repeated below
    return traceback.StackSummary.from_list(kept)


def _user_frames(
    frames: Sequence[traceback.FrameSummary], labels: Container[str]
) -> traceback.StackSummary:
    """The innermost frames from the first of the notebook on (without one, from the first that is
    not ours), without ours at the end, unless the fault is ours."""
    starts = [n for n, frame in enumerate(frames) if frame.filename in labels]
    starts = starts or [n for n, frame in enumerate(frames) if not _is_our_frame(frame)]
    kept = _before_our_raise(frames[starts[0] :]) if starts else []
    changes = [n for n, pair in enumerate(pairwise(kept), 1) if pair[0] != pair[1]]
    first = [0, *changes][-DEPTH:][0]
    return _without_watchers(kept[first:])


def _before_our_raise(frames: Sequence[traceback.FrameSummary]) -> list[traceback.FrameSummary]:
    """Remove our innermost frames if xla_nb raises the error on purpose (a ValueError, say). A
    fault of ours has no `raise` there, and keeps them."""
    kept = _before_ours(frames)
    raises = len(kept) < len(frames) and (frames[-1].line or "").startswith("raise ")
    return kept if raises and kept else list(frames)
