"""Helper processes of ranks: a Pool whose process has died says so.

Python's Pool starts another process and waits forever for what the dead one was to do: where it
cannot unpickle its task, cannot start at all, or was killed. `concurrent.futures` and DataLoader
raise, and so does a Pool in ranks.
"""

from __future__ import annotations

import contextlib
import threading
from multiprocessing import pool
from typing import Any

from xla_nb.wording import cause_of_death, in_past

_here = threading.local()  # of a Pool's own thread: the results that are waited for
_Pool: Any = pool.Pool
_handle: Any = _Pool._handle_workers.__func__
_join: Any = _Pool._join_exited_workers


class HelperLost(RuntimeError):
    """A process of a Pool ended, and with it what it was to do."""


def tell_of_lost_helpers() -> None:
    """Let each Pool of this process raise HelperLost where it would wait forever."""
    _Pool._handle_workers = classmethod(_handle_workers)
    _Pool._join_exited_workers = staticmethod(_join_exited_workers)


def _handle_workers(cls: Any, results: dict[int, Any], *others: Any) -> None:
    _here.results = results
    _handle(cls, results, *others)


def _join_exited_workers(workers: list[Any]) -> bool:
    before = list(workers)
    joined: bool = _join(workers)
    # Not looked up before: one that ends between the two would be joined and never told.
    statuses = [worker.exitcode for worker in before if worker not in workers and worker.exitcode]
    if statuses:
        error = HelperLost(
            f"A process of the Pool {in_past(cause_of_death(statuses[0]))}, so its task is lost. "
            "Read its error, if it had one, in this rank's stderr."
        )
        for result in list(_here.results.values()):
            with contextlib.suppress(KeyError):  # it was there in the meantime
                _fail(result, error)
    return joined


def _fail(result: Any, error: Exception) -> None:
    if isinstance(result, pool.MapResult):
        result._number_left = 1  # type: ignore[attr-defined]  # none of the others is waited for
    result._set(getattr(result, "_index", 0), (False, error))
