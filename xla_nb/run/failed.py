"""RunFailed, also as an instance of the exception of user code that ended the run."""

from __future__ import annotations

import builtins
import contextlib
import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from xla_nb.errors import XlaNbError
from xla_nb.monitor import sentences

if TYPE_CHECKING:
    from xla_nb.run.recorded import RecordedRun

#: Raised by Python's own iterators, or needing more than a message.
_EXCLUDED = (StopIteration, StopAsyncIteration, BaseExceptionGroup)


class RunFailed(XlaNbError):
    """A run that did not return every rank's value. `run` has everything there is; a copy in
    another process has only the message, and no `run`.

    brief: everything but the headline has been shown already. is_seen: whether the executing cell
    shows the headline too.
    """

    is_seen: Callable[[], bool] = staticmethod(lambda: False)

    def __init__(self, run: RecordedRun, brief: bool = False) -> None:
        self.run = run
        paragraphs = [sentences.headline(run.state)]
        if not brief or run.state.refused is not None:
            paragraphs += [*sentences.details(run.state), f"Output and files: {run.record.path}"]
        self._message = "\n\n".join(paragraphs)
        super().__init__(self._message)

    def _render_traceback_(self) -> list[str]:
        if not self.is_seen():
            return super()._render_traceback_()
        state, lines = self.run.state, []
        reason = "the run was stopped" if state.outcome == "stopped" else "the run above shows why"
        if state.refused is not None:
            reason, lines = "no rank was started", sentences.details(state)
        return [*lines, f"{type(self).__name__}: {reason}."]

    def __str__(self) -> str:
        return self._message

    def __reduce__(self) -> Any:
        return _failed_elsewhere, (self._message,)


def _failed_elsewhere(message: str) -> RunFailed:
    failed = RunFailed.__new__(RunFailed)
    failed._message = message
    failed.args = (message,)
    return failed


def as_raised(failed: RunFailed) -> RunFailed:
    """The same error, which `except MyError` also catches if a MyError ended the run, with its
    attributes: torch_xla's launchers raise the original."""
    failure = failed.run.state.first_failure
    if failure is None:
        return failed
    raised = failed.run.raised(failure.rank)
    kind = type(raised) if raised is not None else getattr(builtins, failure.kind, None)
    if not (isinstance(kind, type) and issubclass(kind, Exception)) or issubclass(kind, _EXCLUDED):
        return failed
    try:
        return _make_instance(failed, kind, raised)
    except Exception:  # a class may restrict subclassing and instantiation
        return failed


def _make_instance(failed: RunFailed, kind: type, raised: BaseException | None) -> RunFailed:
    body = {"__module__": RunFailed.__module__}
    cls: Any = type(RunFailed.__name__, (RunFailed, kind), body)
    copy: RunFailed = cls.__new__(cls)
    copy.args = failed.args if raised is None else raised.args
    for base in inspect.getmro(kind):  # `errno`, `pos`, slots
        for name in filter(lambda n: inspect.ismemberdescriptor(vars(base)[n]), vars(base)):
            with contextlib.suppress(AttributeError, TypeError):
                setattr(copy, name, getattr(raised, name))
    vars(copy).update({**getattr(raised, "__dict__", {}), **vars(failed)})
    return copy
