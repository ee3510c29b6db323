"""A real kernel, driven like a front end does: what a cell shows is what a user sees."""

from __future__ import annotations

import contextlib
import io
import os
import queue
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from jupyter_client import KernelManager

from tests.support.warm import Warm

#: Loads the extension in a kernel that launches nothing, without a fork server, which would need
#: five seconds of CPU to import torch_xla.
COLD = "from xla_nb import api\napi.engine().warm = lambda imports: None\n%load_ext xla_nb\n"


@dataclass
class Shown:
    """What one cell showed. `times` has the seconds at which each output arrived, `messages` all
    messages of the kernel. `below` is the traceback under the cell's output, which is short for a
    run that the cell shows; `error` is the whole error."""

    status: str = ""
    stdout: str = ""
    stderr: str = ""
    result: str = ""
    data: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    below: str = ""
    ename: str = ""
    number: int = 0
    seconds: float = 0.0
    times: list[tuple[float, str]] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=list)

    @property
    def lines(self) -> list[str]:
        """What the cell printed, as a terminal shows it; a shared line once per rank."""
        return unfolded(self.stdout)

    @property
    def printed(self) -> str:
        """`lines` as one text."""
        return "\n".join(self.lines)

    @property
    def error_lines(self) -> list[str]:
        """`lines` of stderr."""
        return unfolded(self.stderr)

    @property
    def text(self) -> str:
        """What the cell displayed, as text."""
        shown = (message["content"] for message in self.messages)
        return "\n".join(one["data"].get("text/plain", "") for one in shown if "data" in one)

    @property
    def page(self) -> str:
        """The HTML that the cell keeps: the last update of each of its displays. Updates of other
        cells' displays do not count."""
        kept = {}
        for number, message in enumerate(self.messages):
            content = message["content"]
            name = content.get("transient", {}).get("display_id", number)
            is_new = message["msg_type"] == "display_data"
            if is_new or (message["msg_type"] == "update_display_data" and name in kept):
                kept[name] = content["data"].get("text/html", "")
        return "\n".join(kept.values())

    def seen(self, text: str) -> float:
        """When the first output with this text arrived, in seconds since the cell was sent."""
        return next(at for at, shown in self.times if text in shown)


def unfolded(text: str) -> list[str]:
    """Lines as a terminal shows them: `[0–2] done` as `[0] done`, `[1] done` and `[2] done`."""
    lines = []
    for line in io.StringIO(text):
        shown = line.removesuffix("\n").rpartition("\r")[2]
        found = re.match(r"\[([\d, –]+)\] (.*)", shown, re.DOTALL)
        lines += [f"[{rank}] {found[2]}" for rank in _numbers(found[1])] if found else [shown]
    return lines


def _numbers(spans: str) -> Iterator[int]:
    for span in spans.split(", "):
        first, _, last = span.partition("–")
        yield from range(int(first), int(last or first) + 1)


class Notebook:
    """A kernel and its client. The caller closes it.

    under: a command that runs the kernel's command, such as `prlimit --nofile=64`.
    warm: forks the kernel from a process with torch_xla imported.
    servers: forks the fork servers of all other kernels, except those with their own command or
    environment."""

    servers: ClassVar[Warm | None] = None

    def __init__(self, *, under: Sequence[str] = (), warm: Warm | None = None, **env: str) -> None:
        # Sockets in a folder: no other process can take their names, and ipykernel warns about TCP.
        self._folder = tempfile.TemporaryDirectory(prefix="xla-nb-")
        connection = str(Path(self._folder.name) / "kernel.json")
        self.manager = KernelManager(
            kernel_name="python3", transport="ipc", connection_file=connection
        )
        # Do not block on unsent messages to a dead kernel when this is collected.
        self.manager.context.linger = 100
        self.manager.kernel_spec.argv[:1] = [*under, sys.executable]
        if self.servers and not (under or warm or env):
            self.manager.kernel_spec.argv[:3] = self.servers.command()
        with warm.starting() if warm else contextlib.nullcontext():
            self.manager.start_kernel(env={**os.environ, **env})
        self.client = self.manager.client()
        # No heartbeat: after a pause of the machine, it would reopen a socket during a test.
        self.client.start_channels(hb=False)
        try:
            self.client.wait_for_ready(timeout=120)
        except RuntimeError:
            self.kill()
            raise

    @property
    def pid(self) -> int:
        return self.manager.provisioner.pid

    def run(
        self, code: str, timeout: float = 120, during: Callable[[Shown], object] | None = None
    ) -> Shown:
        """Execute a cell. `during` is called after each message, to act while the cell runs."""
        began = time.monotonic()
        shown = Shown()
        # With stop_on_error, ipykernel 6 would abort requests that arrive just after an error.
        message = self.client.execute(code, stop_on_error=False)
        idle = False
        while not idle:
            try:
                got = self._next(message, began + timeout)
            except TimeoutError as late:
                self._end(message)
                so_far = f"{shown.stdout}\n{shown.stderr}\n{shown.error}"
                raise TimeoutError(f"{late}; it had shown:\n{so_far}") from None
            idle = got["content"].get("execution_state") == "idle"
            _take(shown, got, time.monotonic() - began)
            if during is not None:
                during(shown)
        reply = self.client.get_shell_msg(timeout=timeout)
        while reply["parent_header"].get("msg_id") != message:
            reply = self.client.get_shell_msg(timeout=timeout)
        shown.status = reply["content"]["status"]
        shown.seconds = time.monotonic() - began
        return shown

    def ok(self, code: str, timeout: float = 120) -> Shown:
        """Execute a cell that must succeed."""
        shown = self.run(code, timeout)
        assert shown.status == "ok", shown.error or shown.stderr
        return shown

    def value(self, expression: str) -> str:
        """The repr of an expression in the notebook."""
        return self.ok(f"print(repr(({expression})))").stdout.strip()

    def interrupt(self) -> None:
        self.manager.interrupt_kernel()

    def close(self) -> None:
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=False)
        self.manager.cleanup_resources()
        self._folder.cleanup()

    def kill(self) -> None:
        """End the kernel as a crash would."""
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        self._folder.cleanup()

    def _end(self, message: str) -> None:
        """Interrupt a cell that takes too long, since other tests use the kernel."""
        self.interrupt()
        deadline = time.monotonic() + 10
        with contextlib.suppress(TimeoutError):
            while self._next(message, deadline)["content"].get("execution_state") != "idle":
                pass

    def _next(self, message: str, deadline: float) -> dict[str, Any]:
        while True:
            try:
                got = self.client.get_iopub_msg(timeout=max(0.1, deadline - time.monotonic()))
            except queue.Empty:
                raise TimeoutError("the cell did not end in time") from None
            if got["parent_header"].get("msg_id") == message:
                return got


def _take(shown: Shown, message: dict[str, Any], at: float) -> None:
    content = message["content"]
    shown.messages.append(message)
    match message["msg_type"]:
        case "stream":
            setattr(shown, content["name"], getattr(shown, content["name"]) + content["text"])
            shown.times.append((at, content["text"]))
        case "execute_result" | "display_data":
            shown.result, shown.data = content["data"].get("text/plain", ""), content["data"]
            shown.times.append((at, shown.result))
        case "error":
            shown.ename = content["ename"]
            shown.below = "\n".join(content["traceback"]).replace(" \n", " ")  # unwrapped
            whole = f"{shown.ename}: {content['evalue']}"
            shown.error = whole if shown.ename == "RunFailed" else shown.below
            shown.times.append((at, shown.error))
        case "execute_input":
            shown.number = content["execution_count"]
