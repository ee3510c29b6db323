"""Find what changes between steps when each step compiles a new graph, and which line runs an
operator on the CPU.

The step marker shows only where graphs are compiled. So after a rank has compiled in each of
several steps, a TorchFunctionMode records for a few more which line made tensors of which shape on
the device. It calls each function unchanged and keeps no tensors; without trouble it is not
installed.
"""

from __future__ import annotations

import itertools
import sys
import threading
from collections import Counter
from collections.abc import Callable, Container, Iterator, Sequence
from typing import Any, NamedTuple

from xla_nb.program import tracebacks
from xla_nb.runtimes import Counts

_STEPS = 6  # steps with trouble before recording, and steps that are then recorded
_FALLBACK_SHARE = 0.9  # this share of the steps counts as every step
_COMPILED_SHARE = 0.4  # this share of compiles counts as each step: others follow a collective, say
_MAX_MARKERS = 4  # most step markers in a step
_MAX_OPERATIONS = 20_000  # most operations recorded
_MAX_RECORDINGS = 3  # most recordings in one cell
_MAX_NUMBERS = 16  # most numbers of one operation
#: Operations whose numbers are constants of the graph. In others torch_xla treats numbers as data:
#: another learning rate, say, compiles nothing.
_WITH_CONSTANTS = frozenset(
    {
        *("__getitem__", "__setitem__", "narrow", "select", "roll"),
        *("pow", "pow_", "__pow__", "arange", "tril", "triu"),
    }
)
_CHANGES = (
    "gives a new shape {{often}} ({}, then {})",
    "uses a number that changes {{often}} ({}, then {})",
)
_recording = threading.Lock()  # one at a time: a process may have several ranks


class _Creation(NamedTuple):
    """The tensors that one operation made on the device."""

    place: str
    name: str
    shapes: tuple[object, ...]
    numbers: tuple[object, ...]


class StepChanges:
    """Watches the thread that creates it, which runs the user's function.

    place, change  the line, and what changes there, with a field `often`; empty while unknown
    fallbacks      the line of each operator that runs on the CPU in every step"""

    def __init__(self, labels: Container[str]) -> None:
        self._labels = labels
        self._thread = threading.get_ident()
        self.place = self.change = ""
        self.fallbacks: dict[str, str] = {}
        self._initial: Counts | None = None
        self._recordings = 0
        self._is_calm = True  # few of the last steps compiled
        self._compiles = False  # the line of a change is wanted,
        self._operators: list[str] = []  # and those of these operators
        self._steps: list[list[_Creation]] = []
        self._compiled: list[int] = []  # graphs compiled before each of these steps
        self._remaining = 0  # operations that may still be recorded
        self._xlac: Any = None  # set while recording
        self._original_marker: Callable[..., Any] | None = None
        self._mode: Any = None

    # ---------------------------------------------------------- when to record

    def watch(self, counts: Counts) -> None:
        """Start recording if there is trouble; called in another thread."""
        initial = self._initial = self._initial or counts
        if self._xlac is not None:
            return
        graphs = counts.hits + counts.misses - initial.hits - initial.misses
        calls = {name: n - initial.fallbacks.get(name, 0) for name, n in counts.fallbacks.items()}
        steps = min(counts.steps - initial.steps, max(graphs, *calls.values(), 0))
        if 0 <= steps < _STEPS:
            return
        self._initial = counts
        was_calm = self._is_calm
        self._is_calm = counts.compiles - initial.compiles < _COMPILED_SHARE * steps
        if steps < 0 or self._recordings >= _MAX_RECORDINGS:
            return
        compiles = not self._is_calm and (was_calm or not self.place)  # perhaps at another line
        frequent = {name for name, times in calls.items() if times >= _FALLBACK_SHARE * steps}
        operators = sorted(frequent - self.fallbacks.keys())
        if (compiles or operators) and not _runs_compiled() and _recording.acquire(blocking=False):
            self._recordings += 1
            self._compiles, self._operators = compiles, operators
            self._steps, self._compiled, self._remaining = [], [], _MAX_OPERATIONS
            self._xlac = sys.modules["torch_xla"]._XLAC
            self._original_marker = self._xlac._xla_step_marker
            self._xlac._xla_step_marker = self._mark

    def _mark(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step marker, then begin recording the next step or end."""
        assert self._original_marker is not None
        result = self._original_marker(*args, **kwargs)
        if threading.get_ident() == self._thread and self._xlac is not None:
            if self._mode is None:
                self._mode = _mode(self._call)
                self._mode.__enter__()
            self._compiled.append((self._xlac._xla_metric_data("CompileTime") or (0,))[0])
            if len(self._steps) < _STEPS and self._remaining > 0:
                self._steps.append([])
            else:
                self.end()
        return result

    def end(self) -> None:
        """End a recording in progress; called in the watched thread."""
        if self._xlac is None:
            return
        self._remaining = 0
        if self._mode is not None and not _leave(self._mode):
            return  # below a mode of the program that is active at this marker
        self._mode = None
        if self._xlac._xla_step_marker == self._mark:
            self._xlac._xla_step_marker = self._original_marker
        self._xlac = None
        _recording.release()
        compiled = [after > before for before, after in itertools.pairwise(self._compiled)]
        change = _change(self._steps, compiled) if self._compiles else None
        self._steps = []
        if change is not None:
            self.place, self.change = change

    # ---------------------------------------------------------- recording

    def _call(self, func: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if self._remaining <= 0 or threading.get_ident() != self._thread:
            return func(*args, **kwargs)
        before = [self._calls(name) for name in self._operators]
        result = func(*args, **kwargs)
        self._remaining -= 1
        try:
            self._record(func, args, result)
            for name, calls in zip(self._operators, before, strict=True):
                if self._calls(name) > calls:
                    self.fallbacks.setdefault(name, self._place())
        except Exception:  # from a user's object: must not end the program
            self._remaining = 0
        return result

    def _calls(self, name: str) -> int:
        return self._xlac._xla_counter_value(name) or 0

    def _record(self, func: Callable[..., Any], args: Sequence[Any], result: Any) -> None:
        name = getattr(func, "__name__", "")
        shapes = tuple(_shapes(args[0] if name == "__setitem__" else result))
        if shapes and name != "__get__":
            values = args[name != "arange" :] if name in _WITH_CONSTANTS else ()
            self._steps[-1].append(_Creation(self._place(), name, shapes, tuple(_numbers(values))))

    def _place(self) -> str:
        return tracebacks.innermost(self._thread, self._labels)


def _mode(call: Callable[..., Any]) -> Any:
    from torch.overrides import TorchFunctionMode

    class Recorder(TorchFunctionMode):  # type: ignore[misc] # has no types
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            return call(func, args, kwargs or {})

    return Recorder()


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


def _shapes(result: Any) -> Iterator[tuple[int, ...]]:
    """Shapes of a tensor on the device, or of the first of several. Skips subclasses."""
    torch = sys.modules["torch"]
    for tensor in result[:_MAX_MARKERS] if type(result) in (tuple, list) else (result,):
        if type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.device.type == "xla":
            yield tuple(tensor.shape)


def _numbers(arguments: Any, most: int = _MAX_NUMBERS) -> Iterator[float]:
    """The numbers among an operation's arguments, including slices and lists."""
    for argument in arguments[:most]:
        if type(argument) in (int, float):
            yield argument
        elif type(argument) in (tuple, list):
            yield from _numbers(argument)
        elif type(argument) is slice:
            yield from _numbers((argument.start, argument.stop, argument.step))


def _change(
    steps: Sequence[Sequence[_Creation]], compiled: Sequence[bool]
) -> tuple[str, str] | None:
    """The line at which most steps that compiled first differ from the step before, and how. A step
    may have several markers: a section between two of them is compared with one that begins at the
    same line. If no section with a difference compiled, others of its step may have."""
    for is_wide, distance in itertools.product((False, True), range(1, _MAX_MARKERS + 1)):
        pairs = [
            (earlier, later, set(itertools.chain(*steps[: n + distance])))
            for n, (earlier, later) in enumerate(zip(steps, steps[distance:], strict=False))
            if earlier and later and earlier[0][:2] == later[0][:2]
            if any(compiled[n + distance : n + distance + (distance if is_wide else 1)])
        ]
        differences = [difference for pair in pairs if (difference := _difference(*pair))]
        places = Counter(place for place, _ in differences)
        if differences and (most := places.most_common(1)[0])[1] >= max(2, 2 * len(pairs) / 3):
            return next(candidate for candidate in reversed(differences) if candidate[0] == most[0])
    return None


def _difference(
    earlier: Sequence[_Creation], later: Sequence[_Creation], seen: Container[_Creation]
) -> tuple[str, str] | None:
    """The first difference that was not `seen` in any step before, and so is not compiled; None if
    the steps took different paths before it."""
    for before, after in zip(earlier, later, strict=False):
        if before[:2] != after[:2] or not before.place:
            return None
        if after in seen:
            continue
        for template, old, new in zip(_CHANGES, before[2:], after[2:], strict=True):
            for pair in zip(old, new, strict=False):
                if pair[0] != pair[1]:
                    return before.place, template.format(*pair)
    return None
