"""A real kernel and a client that watches it: what a person sees of a cell, and when.

Times run from the moment the cell is sent to the moment a message shows the text looked for,
whichever way it is shown (stream, display, or an update of one).
"""

from __future__ import annotations

import queue
import re
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from jupyter_client import KernelManager

ROOT = Path(__file__).parent.parent
LIMIT = 120.0  # seconds for anything a benchmark waits for


class CellFailed(Exception):
    """The cell ended in an error, or did not show what was looked for."""


class Notebook:
    """A kernel of its own, started in the repository and ended with the block."""

    def __enter__(self) -> Notebook:
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.folder = tempfile.TemporaryDirectory(prefix="xla-nb-")  # for the sockets
        connection = str(Path(self.folder.name) / "kernel.json")
        self.manager = KernelManager(transport="ipc", connection_file=connection)
        self.manager.start_kernel(cwd=str(ROOT), **quiet)
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
        """Send a cell and wait until it has ended."""
        cell = self.send(code)
        cell.end()
        return cell


class Cell:
    """A cell that was sent, with all that it has shown so far."""

    def __init__(self, notebook: Notebook, code: str) -> None:
        self.client = notebook.client
        self.shown = ""
        self.ended = False
        self.sent = time.perf_counter()
        self.id = self.client.execute(code)

    def until(self, pattern: str, count: int = 1) -> float:
        """Seconds until so many different matches of the pattern have been shown."""
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
