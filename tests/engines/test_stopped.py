"""Which of a run's processes are stopped, of real processes."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from xla_nb.engines.stopped import EVERY, StoppedProcesses
from xla_nb.linux import is_stopped
from xla_nb.protocol import events


@pytest.fixture
def process():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def stop(process):
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)


def started(pid):
    return events.RankStarted(rank=0, local_rank=0, pid=pid, device="xla:0")


def test_a_process_is_stopped_from_sigstop_to_sigcont(process):
    assert not is_stopped(process.pid)
    stop(process)
    assert is_stopped(process.pid)
    process.send_signal(signal.SIGCONT)
    os.waitid(os.P_PID, process.pid, os.WCONTINUED)
    assert not is_stopped(process.pid)


@pytest.mark.parametrize(
    ("state", "stopped"), [(b"T", True), *((bytes([s]), False) for s in b"tSRDZ")]
)
def test_of_the_states_of_processes_only_one_is_stopped(monkeypatch, state, stopped):
    """The name of a process may look like anything."""
    stat = b"12 (a) T (b) " + state + b" 1 12"
    monkeypatch.setattr(Path, "read_bytes", lambda path: stat)
    assert is_stopped(12) is stopped


def test_a_process_that_is_gone_is_not_stopped(process):
    process.kill()
    process.wait()
    assert not is_stopped(process.pid)


def test_only_a_change_is_told_with_the_hosts_name(process):
    processes = StoppedProcesses()
    processes.take(events.JobStarted(pid=os.getpid(), host="h", ranks=1, simulated=True))
    processes.take(started(process.pid))
    assert processes.look(0.0) is None
    stop(process)
    told = processes.look(EVERY)
    assert (told.host, told.pids) == ("h", (process.pid,))
    assert processes.look(2 * EVERY) is None
    process.send_signal(signal.SIGCONT)
    os.waitid(os.P_PID, process.pid, os.WCONTINUED)
    assert processes.look(3 * EVERY).pids == ()


def test_a_look_too_soon_costs_nothing(process):
    processes = StoppedProcesses()
    processes.take(started(process.pid))
    assert processes.look(0.0) is None
    stop(process)
    assert processes.look(EVERY / 2) is None
    assert processes.look(EVERY).pids == (process.pid,)


def test_the_number_of_a_process_that_died_may_be_anothers(process):
    processes = StoppedProcesses()
    processes.take(started(process.pid))
    processes.take(events.ProcessDied(pid=process.pid, status=-9))
    stop(process)
    assert processes.look(0.0) is None
