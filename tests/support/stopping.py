"""Processes that are stopped, for certain: until SIGSTOP strikes all of its threads, which may take
a while on a busy machine, a process goes on."""

import os
import signal
import time

from xla_nb import linux


def halt(pid: int) -> None:
    """Stop a process, and wait until it is."""
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + 60
    while not linux.is_stopped(pid):
        assert time.monotonic() < deadline, f"{pid} does not stop"
        time.sleep(0.001)
