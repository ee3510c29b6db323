"""The variables of live ranks, for a page that shows them.

They are asked for in a thread: a rank may take seconds to read what it holds. They are never asked
for while a cell runs, and a cell that comes does not wait for the answer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from xla_nb.errors import UsageError, XlaNbError
from xla_nb.run.group import Withdrawn
from xla_nb.run.state import Programs
from xla_nb.views import variables as table
from xla_nb.views.variables import Variables


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
        self._sent: dict[str, Any] = {}

    def open(self) -> None:
        """The page shows them, or wants them again."""
        self._is_open = self._is_bidden = True
        self._sent = {}

    def close(self) -> None:
        """The page does not show them any more."""
        self._is_open = self._is_bidden = False

    @property
    def is_news(self) -> bool:
        """Whether there is something to do now."""
        return self._is_open and (self._is_due or self._message() != self._sent)

    @property
    def _is_due(self) -> bool:
        return self._is_bidden and not self._is_asking and not self._programs.running

    def news(self) -> dict[str, Any]:
        """What is to be sent to the page, if anything; asks for them where the page wants them."""
        if not self._is_open:
            return {}
        if self._is_due:
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
        try:
            found = self._ask()
            compared = list(found.values())
            self._answer = {
                "summary": table.summary(compared, found.who),
                "html": table.drawn(compared),
            }
            self._of, self._after = count, after
        except (UsageError, Withdrawn):  # a cell has come, or another question
            self._is_bidden = True
        except XlaNbError as problem:
            self._answer, self._of, self._after = {"problem": str(problem)}, count, after
        finally:
            self._is_asking = False
            self._heard()
