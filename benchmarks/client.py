"""A real kernel and a client that records which output of a cell a user sees, and when.

Times run from sending the cell until a message shows the expected text, in whatever form (stream,
display, or an update of one).
"""

from __future__ import annotations

import atexit
import os
import queue
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import KernelManager

ROOT = Path(__file__).parent.parent
LIMIT = 120.0  # seconds for a cell


class CellFailed(Exception):
    """The cell ended in an error, or did not show the expected text."""


class Notebook:
    """A kernel, started in the repository and ended with the `with` block.

    `command` starts another kernel than this Python's; `environment` is added to its variables.
    Runs are kept in a separate home, which is removed after all benchmarks: within five minutes of
    removing thousands of files, ext4 takes up to 1.5 ms to create one.
    """

    def __init__(
        self, command: Sequence[str] = (), environment: Mapping[str, str] | None = None
    ) -> None:
        self.command, self.environment = list(command), {**os.environ, **(environment or {})}

    def __enter__(self) -> Notebook:
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.folder = tempfile.TemporaryDirectory(prefix="xla-nb-")  # for the sockets
        connection = str(Path(self.folder.name) / "kernel.json")
        self.manager = KernelManager(transport="ipc", connection_file=connection)
        if self.command:
            argv = [*self.command, "-f", "{connection_file}"]
            self.manager._kernel_spec = KernelSpec(argv=argv, language="python")
        home = tempfile.mkdtemp(prefix="xla-nb-")
        atexit.register(shutil.rmtree, home, ignore_errors=True)
        env = {"XLA_NB_HOME": home, **self.environment}
        self.manager.start_kernel(cwd=str(ROOT), env=env, **quiet)
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=LIMIT)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        self.folder.cleanup()

    def send(self, code: str) -> Cell:
        return Cell(self, code)

    def run(self, code: str) -> Cell:
        """Send a cell and wait for its end."""
        cell = self.send(code)
        cell.end()
        return cell


class Cell:
    """A cell that was sent, and everything it has shown so far."""

    def __init__(self, notebook: Notebook, code: str) -> None:
        self.client = notebook.client
        self.shown = ""
        self.ended = False
        self.sent = time.perf_counter()
        self.id = self.client.execute(code)

    def until(self, pattern: str, count: int = 1) -> float:
        """Seconds until `count` different matches of a pattern have been shown."""
        while len(set(re.findall(pattern, self.shown))) < count:
            if self.ended:
                raise CellFailed(f"ended without showing {pattern!r} {count} times: {self.shown}")
            self._take()
        return time.perf_counter() - self.sent

    def end(self) -> float:
        """Seconds until the cell has ended."""
        while not self.ended:
            self._take()
        return time.perf_counter() - self.sent

    def _take(self) -> None:
        try:
            message = self.client.get_iopub_msg(timeout=self.sent + LIMIT - time.perf_counter())
        except (queue.Empty, ValueError):  # a negative timeout
            raise CellFailed(f"still running after {LIMIT:.0f} s: {self.shown}") from None
        if message["parent_header"].get("msg_id") != self.id:
            return
        kind, content = message["msg_type"], message["content"]
        if kind == "error":
            self.end()
            raise CellFailed(f"{content['ename']}: {content['evalue']}")
        if kind == "status" and content["execution_state"] == "idle":
            self.ended = True
        self.shown += text_of(content)


def text_of(content: dict[str, Any]) -> str:
    return str(content.get("text") or content.get("data", {}).get("text/plain", ""))
