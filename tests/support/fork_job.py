"""For launchers: clean processes that import the heavy packages once, then fork many jobs."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path


def environment() -> dict[str, str]:
    """Environment of a launcher: it imports `tests` as a package, so tests can load its pickles."""
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path}


def fork_job(run: Callable[[], object]) -> int:
    """Call `run` in a child process that exits with 0, or 1 on error, and return its pid."""
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        run()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)
