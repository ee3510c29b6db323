"""The job knows where a rank crashed in native code."""

import os
import signal
import textwrap

from xla_nb.messages.events import ProcessDied
from xla_nb.rank.crashes import Crashes


def crashed(cell, number=signal.SIGSEGV):
    """The crash report of the second of two processes, which ran a cell and died by a signal."""
    crashes = Crashes(2)
    pid = os.fork()
    if pid == 0:
        try:
            crashes.watch(1)
            exec(compile(textwrap.dedent(cell), "Cell In[7]", "exec"), {"signal": signal, "os": os})
        finally:
            os._exit(1)
    assert -os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == number
    try:
        return crashes.tell(ProcessDied(pid=pid, status=-number))
    finally:
        crashes.close()


def test_crash_report_has_the_cell_line_and_stack():
    cell = """
        def inner():
            signal.raise_signal(signal.SIGSEGV)
        inner()
    """
    told = crashed(cell)
    assert told.place == "Cell In[7], line 3"
    lines = told.stack.splitlines()
    assert lines[0] == "Stack (most recent call last):"
    assert lines[-2:] == [
        '  File "Cell In[7]", line 4, in <module>',
        '  File "Cell In[7]", line 3, in inner',
    ]


def test_killed_process_does_not_report_the_stack_of_its_child():
    cell = """
        if os.fork() == 0:
            signal.raise_signal(signal.SIGSEGV)
        os.wait()
        os.kill(os.getpid(), signal.SIGKILL)
    """
    told = crashed(cell, signal.SIGKILL)
    assert (told.place, told.stack) == ("", "")


def test_crash_without_a_stack_reports_the_signal():
    cell = "import faulthandler; faulthandler.disable(); signal.raise_signal(signal.SIGSEGV)"
    told = crashed(cell)
    assert (told.status, told.stack) == (-signal.SIGSEGV, "")
