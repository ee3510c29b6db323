"""The job waits for processes that ranks have started, however they have started them."""

import subprocess
import sys

JOB = """
import os, signal, subprocess, sys, time
from xla_nb import linux
from xla_nb.rank import job
linux.adopt_orphans()

def rank(function):
    pid = os.fork()
    if pid == 0:
        function()
        os._exit(0)
    os.waitpid(pid, 0)

{script}
"""


def told(script):
    """What the script of a job prints."""
    done = subprocess.run(
        [sys.executable, "-c", JOB.format(script=script)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stderr == ""
    return done.stdout.strip()


def test_without_processes_nothing_is_waited_for():
    assert told("job._wait_for_others([]); print('ended')") == "ended"


def test_processes_are_waited_for_with_what_they_start():
    """The shell starts `cat` in a session of its own, whose input ends once it is waited for."""
    script = """
reader, writer = os.pipe()
rank(lambda: subprocess.Popen("exec 3<&0; setsid cat <&3 &", shell=True, stdin=reader))
os.close(reader)
waiting, rounds = job._wait_for_one, []
def let_it_end(pids):
    rounds.append(pids)
    if len(rounds) == 2: os.close(writer)
    waiting(pids)
job._wait_for_one = let_it_end
job._wait_for_others([])
print(len(rounds) > 1, linux.children())
"""
    assert told(script) == "True []"


def test_a_process_on_its_way_out_is_waited_for():
    """Its first thread has ended, so it has no command any more; the other ends with its input."""
    script = """
reader, writer = os.pipe()
ENDING = '''
import ctypes, os, sys, threading
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0))).start()
ctypes.CDLL(None).pthread_exit(None)
'''
def start():
    child = subprocess.Popen([sys.executable, "-c", ENDING], stdin=reader)
    while not linux.is_ending(child.pid): time.sleep(0.01)
    os._exit(0)
rank(start)
waiting = job._wait_for_one
def let_it_end(pids):
    os.close(writer)
    waiting(pids)
job._wait_for_one = let_it_end
job._wait_for_others([])
print(linux.children())
"""
    assert told(script) == "[]"


def test_children_that_were_there_before_are_not_waited_for():
    script = """
own = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
job._wait_for_others(linux.children())
print(own.poll())
own.communicate()
"""
    assert told(script) == "None"


def test_resource_trackers_are_not_waited_for():
    script = """
reader, writer = os.pipe()
TRACKER = "import sys; sys.stdin.read()  # x.resource_tracker import main"
rank(lambda: subprocess.Popen([sys.executable, "-c", TRACKER], stdin=reader))
job._wait_for_others([])
print(len(linux.children()))
os.close(writer)
"""
    assert told(script) == "1"
