"""What a run has left is ended; resource trackers may unlink first what it leaves."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from xla_nb import linux
from xla_nb.engines.ending import end_all, end_group

#: A process that makes a segment, which its resource tracker would unlink, and waits for its end.
MAKER = (
    "import pathlib, signal\n"
    "from multiprocessing import resource_tracker, shared_memory\n"
    "memory = shared_memory.SharedMemory(create=True, size=1000)\n"
    "tracker = resource_tracker._resource_tracker._pid\n"
    "command = pathlib.Path(f'/proc/{tracker}/cmdline')\n"
    "while b'resource_tracker import' not in command.read_bytes():\n"
    "    pass  # it is being started\n"
    "print(memory.name, tracker, flush=True)\n"
    "signal.pause()"
)
#: A process that is taken for a tracker, and does not end.
STUCK = "import signal; signal.pause()  # x.resource_tracker import main"


@pytest.fixture
def start():
    """Start Python in a group of its own; gives the process."""
    started = []

    def start(script):
        command = [sys.executable, "-c", script]
        started.append(subprocess.Popen(command, stdout=-1, text=True, process_group=0))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_a_group_is_killed_but_for_the_tracker_which_unlinks_what_the_group_has_made(start):
    maker = start(MAKER)
    name, tracker = maker.stdout.readline().split()
    assert Path("/dev/shm", name).exists()
    assert int(tracker) in linux.in_group(maker.pid)
    end_group(maker.pid)
    assert maker.wait(60) < 0
    assert linux.wait([int(tracker)], 60) == []
    assert not Path("/dev/shm", name).exists()


def test_a_tracker_outlives_the_group_even_if_each_process_ends_at_once(start, monkeypatch):
    maker = start(MAKER)
    name, tracker = maker.stdout.readline().split()
    kill = os.kill

    def kill_and_wait(pid, number):
        kill(pid, number)
        if number == signal.SIGKILL:
            assert linux.wait([pid], 60) == []  # Linux hangs up its group now, if it would

    monkeypatch.setattr(os, "kill", kill_and_wait)
    end_group(maker.pid)
    assert linux.wait([int(tracker)], 60) == []
    assert not Path("/dev/shm", name).exists()


def test_a_group_that_is_gone_is_no_error(start):
    gone = start("pass")
    assert gone.wait(60) == 0
    end_group(gone.pid)


def test_everything_is_killed_but_trackers_have_time(start):
    maker = start(MAKER)
    name, tracker = maker.stdout.readline().split()
    family = [int(tracker), maker.pid]  # the tracker first: the order does not matter
    end_all(lambda: [pid for pid in family if linux.is_alive(pid)], 60)
    assert maker.wait(60) < 0
    assert not linux.is_alive(int(tracker))
    assert not Path("/dev/shm", name).exists()


def test_a_tracker_that_does_not_end_is_killed_when_the_time_is_over(start):
    stuck = start(STUCK)
    while not linux.is_tracker(stuck.pid):
        os.sched_yield()
    end_all(lambda: [stuck.pid] if linux.is_alive(stuck.pid) else [], 0.1)
    assert stuck.wait(60) < 0
