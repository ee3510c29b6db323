"""The variables of live ranks, for a page that shows them.

They are asked for in a thread: a rank may take seconds to read what it holds. They are never asked
for while a cell runs, and a cell that comes does not wait for the answer.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

from xla_nb.errors import UsageError, XlaNbError
from xla_nb.run.group import Withdrawn
from xla_nb.run.state import Programs
from xla_nb.views import variables as table
from xla_nb.views.variables import Variables

#: Seconds without a cell after which they are asked for again: cells often follow each other.
_REST = 1.0
#: Seconds that the last answer may have taken, for the next one to be asked for unbidden.
_QUICK = 2.0


class AskedVariables:
    """`ask` gives the variables, or raises XlaNbError; `heard` is called when it has."""

    def __init__(
        self, programs: Programs, ask: Callable[[], Variables], heard: Callable[[], None]
    ) -> None:
        self._programs, self._ask, self._heard = programs, ask, heard
        self._is_open = self._is_asking = self._is_bidden = False
        self._answer: dict[str, Any] = {}
        self._of = -1  # how many cells had begun when they were asked for
        self._after = ""
        self._took = 0.0
        self._rests: float | None = None  # since when no cell runs
        self._sent: dict[str, Any] = {}

    def open(self) -> None:
        """The page shows them, or wants them again."""
        self._is_open = self._is_bidden = True
        self._sent = {}

    def close(self) -> None:
        """The page does not show them any more."""
        self._is_open = False

    @property
    def is_news(self) -> bool:
        """Whether there is something to do now."""
        can_ask = self._is_bidden and not self._is_asking and not self._programs.running
        return self._is_open and (can_ask or self._message() != self._sent)

    def pause(self, now: float) -> float | None:
        """Seconds until they are to be asked for unbidden; None: not before something happens."""
        if not self._is_due_after_rest or self._rests is None:
            return None
        return max(0.0, self._rests + _REST - now)

    @property
    def _is_due_after_rest(self) -> bool:
        is_old = self._of != self._programs.count and self._took <= _QUICK
        return self._is_open and is_old and not self._is_asking

    def news(self, now: float) -> dict[str, Any]:
        """What is to be sent to the page, if anything; asks for them where it is time."""
        if self._programs.running:
            self._rests = None
        elif self._rests is None:
            self._rests = now
        if not self._is_open:
            return {}
        if self._rests is not None and not self._is_asking:
            rested = self._is_due_after_rest and now - self._rests >= _REST
            if self._is_bidden or rested:
                self._begin()
        message = self._message()
        if message == self._sent:
            return {}
        self._sent = message
        return message

    def _message(self) -> dict[str, Any]:
        busy = bool(self._programs.running)
        state = "asking" if self._is_asking else "busy" if busy else "shown"
        is_old = self._of != self._programs.count
        return {"state": state, "old": is_old, "after": self._after, **self._answer}

    def _begin(self) -> None:
        self._is_bidden, self._is_asking = False, True
        count, newest = self._programs.count, self._programs.newest
        after = newest[0].began.label if newest else ""
        asking = threading.Thread(
            target=self._look, args=(count, after), name="xla_nb-variables", daemon=True
        )
        asking.start()

    def _look(self, count: int, after: str) -> None:
        began = time.monotonic()
        try:
            found = self._ask()
            compared = list(found.values())
            self._answer = {
                "summary": table.summary(compared, found.who),
                "html": table.drawn(compared),
            }
            self._of, self._after, self._took = count, after, time.monotonic() - began
        except (UsageError, Withdrawn):  # a cell has come, or another question
            # Asked again after a rest, a question of the page's too, however long the last took.
            self._rests, self._took = time.monotonic(), 0.0
        except XlaNbError as problem:
            self._answer, self._of, self._after = {"problem": str(problem)}, count, after
        finally:
            self._is_asking = False
            self._heard()
