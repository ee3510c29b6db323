"""The job waits for processes that ranks have started, in whatever way."""

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


def output_of(script):
    """The output of a job's script."""
    done = subprocess.run(
        [sys.executable, "-c", JOB.format(script=script)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stderr == ""
    return done.stdout.strip()


def test_job_without_other_processes_does_not_wait():
    assert output_of("job._wait_for_others([]); print('ended')") == "ended"


def test_job_waits_for_processes_and_their_descendants():
    """The shell starts `cat` in a new session; its input ends once the job waits for it."""
    script = """
reader, writer = os.pipe()
rank(lambda: subprocess.Popen("exec 3<&0; setsid cat <&3 &", shell=True, stdin=reader))
os.close(reader)
remaining, rounds = job._remaining, []
def let_it_end(known):
    rounds.append(known)
    if len(rounds) == 2: os.close(writer)
    return remaining(known)
job._remaining = let_it_end
job._wait_for_others([])
print(len(rounds) > 1, linux.children())
"""
    assert output_of(script) == "True []"


def test_job_waits_for_an_exiting_process():
    """Its main thread has ended, so it no longer has a command line; the other thread ends with
    its input."""
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
remaining, looks = job._remaining, []
def let_it_end(known):
    looks.append(known)
    if len(looks) == 2: os.close(writer)
    return remaining(known)
job._remaining = let_it_end
job._wait_for_others([])
print(linux.children())
"""
    assert output_of(script) == "[]"


def test_job_does_not_wait_for_its_earlier_children():
    script = """
own = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
job._wait_for_others(linux.children())
print(own.poll())
own.communicate()
"""
    assert output_of(script) == "None"


def test_job_does_not_wait_for_resource_trackers():
    script = """
reader, writer = os.pipe()
TRACKER = "import sys; sys.stdin.read()  # x.resource_tracker import main"
rank(lambda: subprocess.Popen([sys.executable, "-c", TRACKER], stdin=reader))
job._wait_for_others([])
print(len(linux.children()))
os.close(writer)
"""
    assert output_of(script) == "1"
