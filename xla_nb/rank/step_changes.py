"""Find what changes between steps when each step compiles a new graph, and which line runs an
operator on the CPU.

The step marker shows only where graphs are compiled. So after a rank has compiled in each of
several steps, a TorchFunctionMode records for a few more which line made tensors of which shape on
the device. It calls each function unchanged and keeps no tensors; without trouble it is not
installed.
"""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any, NamedTuple

from xla_nb.program import tracebacks
from xla_nb.runtimes.gauges import Counts

_STEPS = 6  # steps with trouble before recording, and steps that are then recorded
_EACH = 0.9  # this share of the steps counts as every step
_SOME = 0.4  # this share of graphs compiled counts as each step: others follow a collective, say
_MARKERS = 4  # most step markers in a step
_MOST = 20_000  # most operations recorded
_LOOKS = 3  # most recordings in one cell
_NUMBERS = 16  # most numbers of one operation
#: Operations whose numbers are constants of the graph. In others torch_xla treats numbers as data:
#: another learning rate, say, compiles nothing.
_WITH_CONSTANTS = frozenset(
    {
        *("__getitem__", "__setitem__", "narrow", "select", "roll"),
        *("pow", "pow_", "__pow__", "arange", "tril", "triu"),
    }
)
_CHANGES = (
    "gives a new shape in each step ({}, then {})",
    "uses a number that changes in each step ({}, then {})",
)
_looking = threading.Lock()  # one at a time: a process may have several ranks


class _Made(NamedTuple):
    """The tensors that one operation made on the device."""

    place: str
    name: str
    shapes: Sequence[object]
    numbers: Sequence[object]


class StepChanges:
    """Watches the thread that creates it, which runs the user's function.

    place, change  the line, and what changes there; empty while unknown
    fallbacks      the line of each operator that runs on the CPU in every step"""

    def __init__(self, labels: Container[str]) -> None:
        self._labels = labels
        self._thread = threading.get_ident()
        self.place = self.change = ""
        self.fallbacks: dict[str, str] = {}
        self._before: Counts | None = None
        self._looks = 0
        self._names: list[str] = []  # operators whose lines are wanted
        self._steps: list[list[_Made]] = []
        self._left = 0  # operations that may still be recorded
        self._xlac: Any = None  # set while recording
        self._marker: Callable[..., Any] | None = None
        self._mode: Any = None

    # ---------------------------------------------------------- when to record

    def watch(self, counts: Counts) -> None:
        """Start recording if there is trouble; called in another thread."""
        before = self._before = self._before or counts
        if self._xlac is not None:
            return
        graphs = counts.hits + counts.misses - before.hits - before.misses
        calls = {name: n - before.fallbacks.get(name, 0) for name, n in counts.fallbacks.items()}
        steps = min(counts.steps - before.steps, max(graphs, *calls.values(), 0))
        if 0 <= steps < _STEPS:
            return
        self._before = counts
        if steps < 0 or self._looks >= _LOOKS:
            return
        compiles = counts.compiles - before.compiles >= _SOME * steps and not self.place
        often = {name for name, times in calls.items() if times >= _EACH * steps}
        names = sorted(often - self.fallbacks.keys())
        if (compiles or names) and not _runs_compiled() and _looking.acquire(blocking=False):
            self._looks += 1
            self._names, self._steps, self._left = names, [], _MOST
            self._xlac = sys.modules["torch_xla"]._XLAC
            self._marker = self._xlac._xla_step_marker
            self._xlac._xla_step_marker = self._mark

    def _mark(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step marker, then begin recording the next step or end."""
        assert self._marker is not None
        done = self._marker(*args, **kwargs)
        if threading.get_ident() == self._thread and self._xlac is not None:
            if self._mode is None:
                self._mode = _mode(self._call)
                self._mode.__enter__()
            if len(self._steps) < _STEPS and self._left > 0:
                self._steps.append([])
            else:
                self.end()
        return done

    def end(self) -> None:
        """End a recording in progress; called in the watched thread."""
        if self._xlac is None:
            return
        self._left = 0
        if self._mode is not None and not _leave(self._mode):
            return  # below a mode of the program that is active at this marker
        self._mode = None
        if self._xlac._xla_step_marker == self._mark:
            self._xlac._xla_step_marker = self._marker
        self._xlac = None
        _looking.release()
        found, self._steps = _change(self._steps), []
        if found is not None:
            self.place, self.change = found

    # ---------------------------------------------------------- recording

    def _call(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if self._left <= 0 or threading.get_ident() != self._thread:
            return func(*args, **kwargs)
        before = [self._calls(name) for name in self._names]
        made = func(*args, **kwargs)
        self._left -= 1
        try:
            self._note(func, args, made)
            for name, calls in zip(self._names, before, strict=True):
                if self._calls(name) > calls:
                    self.fallbacks.setdefault(name, self._place())
        except Exception:  # from a user's object: must not end the program
            self._left = 0
        return made

    def _calls(self, name: str) -> int:
        return self._xlac._xla_counter_value(name) or 0

    def _note(self, func: Callable[..., Any], args: Sequence[Any], made: Any) -> None:
        name = getattr(func, "__name__", "")
        shapes = tuple(_shapes(args[0] if name == "__setitem__" else made))
        if shapes and name != "__get__":
            given = args[name != "arange" :] if name in _WITH_CONSTANTS else ()
            self._steps[-1].append(_Made(self._place(), name, shapes, tuple(_numbers(given))))

    def _place(self) -> str:
        return tracebacks.innermost(self._thread, self._labels)


def _mode(call: Callable[..., Any]) -> Any:
    from torch.overrides import TorchFunctionMode

    class Noting(TorchFunctionMode):  # type: ignore[misc] # has no types
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return call(func, args, kwargs or {})

    return Noting()


def _leave(mode: Any) -> bool:
    """Leave the mode if it is the innermost one."""
    import torch

    depth = torch._C._len_torch_function_stack()
    if not depth or torch._C._get_function_stack_at(depth - 1) is not mode:
        return False
    mode.__exit__(None, None, None)
    return True


def _runs_compiled() -> bool:
    """Whether Dynamo has compiled functions, which it would compile again for the mode."""
    utils: Any = sys.modules.get("torch._dynamo.utils")
    return utils is not None and bool(utils.counters["frames"])


def _shapes(made: Any) -> Iterator[tuple[int, ...]]:
    """Shapes of a tensor on the device, or of the first of several. Skips subclasses."""
    torch = sys.modules["torch"]
    for one in made[:_MARKERS] if type(made) in (tuple, list) else (made,):
        if type(one) in (torch.Tensor, torch.nn.Parameter) and one.device.type == "xla":
            yield tuple(one.shape)


def _numbers(given: Any, left: int = _NUMBERS) -> Iterator[float]:
    """The numbers among an operation's arguments, including slices and lists."""
    for one in given[:left]:
        if type(one) in (int, float):
            yield one
        elif type(one) in (tuple, list):
            yield from _numbers(one)
        elif type(one) is slice:
            yield from _numbers((one.start, one.stop, one.step))


def _change(steps: Sequence[Sequence[_Made]]) -> tuple[str, str] | None:
    """The line at which most steps first differ from the step before, and how. A step may have
    several markers: a section between two of them is compared with one that begins at the same
    line."""
    for distance in range(1, _MARKERS + 1):
        pairs = [
            (one, two)
            for one, two in zip(steps, steps[distance:], strict=False)
            if one and two and one[0][:2] == two[0][:2]
        ]
        found = [difference for pair in pairs if (difference := _difference(*pair))]
        places = Counter(place for place, _ in found)
        if found and (most := places.most_common(1)[0])[1] >= max(2, 2 * len(pairs) / 3):
            return next(one for one in reversed(found) if one[0] == most[0])
    return None


def _difference(one: Sequence[_Made], two: Sequence[_Made]) -> tuple[str, str] | None:
    """The first difference; None if the steps took different paths before it."""
    for before, after in zip(one, two, strict=False):
        if before[:2] != after[:2] or not before.place:
            return None
        for told, old, new in zip(_CHANGES, before[2:], after[2:], strict=True):
            for pair in zip(old, new, strict=False):
                if pair[0] != pair[1]:
                    return before.place, told.format(*pair)
    return None
