"""A helper process: how it starts, what it sends and receives, how it ends."""

import os
import signal
import sys
from pathlib import Path

import pytest

import xla_nb
from xla_nb.engines.child import Child, in_memory
from xla_nb.errors import LaunchError

# Executes one line of Python at a time and sends the value of `said`, if set.
MODULE = """
import json, os, signal, socket, sys, time
def main(fd, parent, *arguments):
    control = socket.socket(fileno=fd)
    while True:
        message, fds, _, _ = socket.recv_fds(control, 1 << 16, 4)
        if not message:
            return
        scope = {**globals(), 'arguments': arguments, 'fds': fds, 'said': None}
        exec(json.loads(message)['do'], scope)
        if scope['said'] is not None:
            control.send(json.dumps({'said': scope['said']}).encode())
"""


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Start children, and close those that the test leaves open."""
    (tmp_path / "obeys.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    made = []

    def start(*arguments, module="obeys", env=None):
        made.append(Child(module, list(arguments), os.environ if env is None else env))
        return made[-1]

    yield start
    for child in made:
        if not child._output.closed:
            child.close()


@pytest.fixture
def child(start):
    return start()


def evaluated(child, code, *fds):
    """What the child sends after executing this line of Python."""
    child.send({"do": code}, *fds)
    return child.receive()["said"]


def test_main_is_called_with_the_arguments(start):
    assert evaluated(start("ray://h", [1, None]), "said = arguments") == ["ray://h", [1, None]]


def test_environment_is_exactly_the_one_given(start):
    env = {"MINE": "1", "PATH": os.environ["PATH"]}
    environ = evaluated(start(env=env), "said = dict(os.environ)")
    assert {name: environ.get(name) for name in ("MINE", "PATH", "HOME")} == {**env, "HOME": None}


def test_child_has_this_processs_path_without_the_notebooks_folder(start, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", ["", *sys.path, str(tmp_path / "here"), "/elsewhere"])
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert evaluated(start(), "said = sys.path") == [entry for entry in sys.path[1:]
                                                 if entry != str(tmp_path / "here")]  # fmt: skip


def test_child_imports_the_same_xla_nb(child):
    assert evaluated(child, "import xla_nb; said = xla_nb.__file__") == xla_nb.__file__


def test_child_runs_in_its_own_session_in_the_root_folder_without_input(child):
    code = "said = os.getsid(0) == os.getpid(), os.getcwd(), sys.stdin.read()"
    assert evaluated(child, code) == [True, "/", ""]


def test_file_descriptors_are_sent_with_a_request(child):
    with in_memory(b"content") as fd:
        assert evaluated(child, "said = os.pread(fds[0], 100, 0).decode()", fd) == "content"


def test_waiting_callback_is_called_until_a_message_arrives(child):
    waited = []

    def waiting():
        if not waited:
            child.send({"do": "said = 'at last'"})
        waited.append(True)

    assert child.receive(waiting) == {"said": "at last"}
    assert waited


def test_child_has_news_once_it_has_sent_a_message(child):
    child.send({"do": "said = 1"})
    while not child.has_news:
        assert child.alive
    assert child.receive() == {"said": 1}
    assert not child.has_news


def test_receiving_from_an_ended_process_returns_none(child):
    child.send({"do": "os._exit(3)"})
    assert child.receive() is None
    assert not child.alive
    assert child.process.returncode == 3


def test_ended_within_distinguishes_live_and_ended_processes(child):
    assert not child.ended_within(0.01)
    child.send({"do": "os._exit(0)"})
    assert child.ended_within(10)


def test_sending_to_an_ended_process_raises_oserror(child):
    os.kill(child.process.pid, signal.SIGKILL)
    assert child.receive() is None
    with pytest.raises(OSError, match="pipe"):
        child.send({"do": ""})


def test_last_output_is_the_end_of_the_childs_output(child):
    child.send({"do": "print('x' * 9000); print('one'); sys.stdout.flush(); 1 / 0"})
    assert child.receive() is None
    output = child.last_output()
    assert len(output) == 2000
    assert "x\none\nTraceback" in output
    assert output.endswith("ZeroDivisionError: division by zero")


def test_last_output_can_be_read_while_the_child_prints(child):
    for word in ("one", "two", "three"):
        evaluated(child, f"print({word!r}, flush=True); said = 1")
        assert child.last_output().splitlines()[-1] == word
    assert child.last_output() == "one\ntwo\nthree"


def test_failed_import_is_in_the_last_output(start):
    child = start(module="xla_nb.not_there")
    assert child.receive() is None
    assert "No module named 'xla_nb.not_there'" in child.last_output()


def test_closed_child_exits_normally(child):
    child.close()
    assert child.process.returncode == 0


def test_busy_process_can_be_terminated_now(child):
    evaluated(child, "said = 1")
    child.send({"do": "signal.pause()"})
    child.close(now=True)
    assert child.process.returncode == -signal.SIGTERM


def test_process_that_cannot_be_started_raises_launch_error(start, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/not/there")
    with pytest.raises(LaunchError, match=r"Could not start .*No such file"):
        start()


def test_in_memory_content_is_not_on_disk():
    with in_memory(b"content") as fd:
        assert os.pread(fd, 100, 0) == b"content"
        assert str(Path(f"/proc/self/fd/{fd}").readlink()).startswith("/memfd:")
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(fd)


def test_search_path_entries_that_are_not_strings_are_left_out(start, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path, Path("/a/path"), b"/bytes"])
    child = start()
    assert evaluated(child, "said = [entry for entry in sys.path if 'a/path' in entry]") == []


def test_child_starts_even_if_the_working_directory_was_deleted(start, tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert evaluated(start(), "said = os.getcwd()") == "/"
