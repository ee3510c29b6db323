"""A process beside this one: what it is started with, what goes there and back, how it ends."""

import os
import signal
import sys
from pathlib import Path

import pytest

import xla_nb
from xla_nb.engines.child import Child, in_memory
from xla_nb.errors import LaunchError

# Does as it is told, a line of Python at a time, and sends what `said` holds then.
MODULE = """
import json, os, signal, socket, sys, time
def main(fd, *arguments):
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
    """Start children; those that the test leaves are ended with it."""
    (tmp_path / "obeys.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    made = []

    def start(*arguments, module="obeys", env=None):
        made.append(Child(module, list(arguments), os.environ if env is None else env))
        return made[-1]

    yield start
    for child in made:
        if not child._words.closed:
            child.close()


@pytest.fixture
def child(start):
    return start()


def asked(child, what, *fds):
    """What it says after a line of Python."""
    child.send({"do": what}, *fds)
    return child.receive()["said"]


def test_it_is_called_with_its_arguments(start):
    assert asked(start("ray://h", [1, None]), "said = arguments") == ["ray://h", [1, None]]


def test_it_has_the_environment_that_it_was_given_and_no_other(start):
    env = {"MINE": "1", "PATH": os.environ["PATH"]}
    found = asked(start(env=env), "said = dict(os.environ)")
    assert {name: found.get(name) for name in ("MINE", "PATH", "HOME")} == {**env, "HOME": None}


def test_it_imports_what_this_process_would_but_for_the_notebooks_folder(
    start, tmp_path, monkeypatch
):
    monkeypatch.setattr(sys, "path", ["", *sys.path, str(tmp_path / "here"), "/elsewhere"])
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert asked(start(), "said = sys.path") == [entry for entry in sys.path[1:]
                                                 if entry != str(tmp_path / "here")]  # fmt: skip


def test_xla_nb_is_the_one_that_runs_here(child):
    assert asked(child, "import xla_nb; said = xla_nb.__file__") == xla_nb.__file__


def test_it_has_a_session_of_its_own_at_the_root_and_no_input(child):
    said = "said = os.getsid(0) == os.getpid(), os.getcwd(), sys.stdin.read()"
    assert asked(child, said) == [True, "/", ""]


def test_files_go_there_with_what_is_told(child):
    with in_memory(b"content") as fd:
        assert asked(child, "said = os.pread(fds[0], 100, 0).decode()", fd) == "content"


def test_who_waits_is_called_meanwhile(child):
    waited = []

    def waiting():
        if not waited:
            child.send({"do": "said = 'at last'"})
        waited.append(True)

    assert child.receive(waiting) == {"said": "at last"}
    assert waited


def test_it_has_news_when_it_has_said_something(child):
    child.send({"do": "said = 1"})
    while not child.has_news:
        assert child.alive
    assert child.receive() == {"said": 1}
    assert not child.has_news


def test_when_it_has_ended_there_is_nothing_to_receive(child):
    child.send({"do": "os._exit(3)"})
    assert child.receive() is None
    assert not child.alive
    assert child.process.returncode == 3


def test_one_that_lives_does_not_end_within_a_moment(child):
    assert not child.ended_within(0.01)
    child.send({"do": "os._exit(0)"})
    assert child.ended_within(10)


def test_nothing_can_be_sent_to_one_that_is_gone(child):
    os.kill(child.process.pid, signal.SIGKILL)
    assert child.receive() is None
    with pytest.raises(OSError, match="pipe"):
        child.send({"do": ""})


def test_its_last_words_are_the_end_of_what_it_printed(child):
    child.send({"do": "print('x' * 9000); print('one'); sys.stdout.flush(); 1 / 0"})
    assert child.receive() is None
    words = child.last_words()
    assert len(words) == 2000
    assert "x\none\nTraceback" in words
    assert words.endswith("ZeroDivisionError: division by zero")


def test_its_last_words_can_be_read_while_it_goes_on_printing(child):
    for word in ("one", "two", "three"):
        asked(child, f"print({word!r}, flush=True); said = 1")
        assert child.last_words().splitlines()[-1] == word
    assert child.last_words() == "one\ntwo\nthree"


def test_a_module_that_cannot_be_imported_is_in_its_last_words(start):
    child = start(module="xla_nb.not_there")
    assert child.receive() is None
    assert "No module named 'xla_nb.not_there'" in child.last_words()


def test_closing_lets_it_go_by_itself(child):
    child.close()
    assert child.process.returncode == 0


def test_one_that_is_busy_can_be_ended_now(child):
    asked(child, "said = 1")
    child.send({"do": "signal.pause()"})
    child.close(now=True)
    assert child.process.returncode == -signal.SIGTERM


def test_a_process_that_cannot_be_started_is_an_error_in_words(start, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/not/there")
    with pytest.raises(LaunchError, match=r"could not be started: .*No such file"):
        start()


def test_content_in_memory_is_nowhere_on_disk():
    with in_memory(b"content") as fd:
        assert os.pread(fd, 100, 0) == b"content"
        assert str(Path(f"/proc/self/fd/{fd}").readlink()).startswith("/memfd:")
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(fd)
