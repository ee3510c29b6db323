"""`input()` and `getpass` on ranks, in a real kernel with a front end that may answer."""

import contextlib
import threading
import time
from pathlib import Path

import pytest

BOTH = """%%xla_spawn -n 2 -o answered
from getpass import getpass
def f(rank):
    print("before", rank)
    return input("name? "), getpass() if rank else None
"""


@pytest.fixture
def front_end(notebook):
    """Runs a cell and answers its questions with a text or by calling a function."""

    @contextlib.contextmanager
    def answering(*answers):
        asked = []

        def answer():
            for one in answers:
                content = notebook.client.get_stdin_msg(timeout=60)["content"]
                asked.append((content["prompt"], content["password"]))
                notebook.client.input(one) if isinstance(one, str) else one()

        thread = threading.Thread(target=answer)
        thread.start()
        yield asked
        thread.join()

    def run(cell, *answers):
        with answering(*answers) as asked:
            shown = notebook.run(cell)
        return shown, asked

    return run


def test_cell_asks_for_one_rank_at_a_time_and_names_it(front_end, notebook):
    shown, asked = front_end(BOTH, "Ada", "Bob", "typed unseen")
    assert shown.status == "ok", shown.error
    assert sorted(asked[:2]) == [("rank 0 asks: name? ", False), ("rank 1 asks: name? ", False)]
    assert asked[2] == ("rank 1 asks: Password: ", True)
    first = int(asked[0][0].split()[1])
    assert notebook.value(f"answered[{first}][0], answered[{1 - first}][0]") == "('Ada', 'Bob')"
    assert notebook.value("answered[1][1]") == "'typed unseen'"
    assert shown.seen("[0] before 0") < shown.seconds


def test_passwords_are_not_in_the_record(front_end, notebook):
    cell = (
        "%%xla_spawn -n 1 -o kept_secret\nimport getpass\ndef f(rank):\n    getpass.getpass('PIN')"
    )
    shown, _ = front_end(cell, "s3same0pen")
    assert shown.status == "ok", shown.error
    folder = Path(notebook.value("str(kept_secret.record.path)").strip("'"))
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if b"s3same0pen" in path.read_bytes()]


@pytest.mark.parametrize("name", ["getpass", "input"])
def test_input_functions_from_notebook_variables_ask_too(name, front_end, notebook):
    notebook.ok("from getpass import getpass\nask = {'getpass': getpass, 'input': input}")
    cell = f"%%xla_spawn -n 1 -o bound\ndef f(rank): return ask[{name!r}]('now ')"
    shown, asked = front_end(cell, "typed")
    assert shown.status == "ok", shown.error
    assert asked == [("rank 0 asks: now ", name == "getpass")]
    assert notebook.value("bound[0]") == "'typed'"


def test_view_updates_while_a_question_is_open(front_end, notebook):
    """The page shows that rank 1 ends and that rank 0 waits for an answer."""
    cell = (
        "%%xla_spawn -n 2 --view panel -o asked\nimport time\ndef f(rank):\n"
        "    time.sleep(1.5 * rank)\n    return None if rank else input('who? ')"
    )
    waited = {}

    def answer():
        time.sleep(4)
        waited["until"] = time.time()
        notebook.client.input("me")

    shown, _ = front_end(cell, answer)
    assert shown.status == "ok", shown.error
    told = [
        (message["header"]["date"].timestamp(), str(message["content"].get("data", "")))
        for message in shown.messages
        if message["msg_type"] == "comm_msg"
    ]
    before = [text for at, text in told if at < waited["until"]]
    assert any("waits for an answer" in text for text in before)
    assert any("finished" in text for text in before)


def test_displays_appear_while_a_question_is_open(front_end, notebook):
    cell = (
        "%%xla_spawn -n 2 --view panel -o both\nimport time\n"
        "from IPython.display import HTML\ndef f(rank):\n"
        "    if rank == 0: return input('who? ')\n    display(HTML('<b>meanwhile</b>'))"
    )

    def answer():
        time.sleep(3)
        notebook.client.input("me")

    shown, _ = front_end(cell, answer)
    assert shown.status == "ok", shown.error
    assert "<b>meanwhile</b>" in str([message["content"] for message in shown.messages])
    assert notebook.value("len(both.displays[1])") == "1"


def test_interrupt_ends_the_question_and_the_run(front_end, notebook):
    cell = "%%xla_spawn -n 2 --grace 1\ndef f(rank): return input('stop? ')"
    shown, asked = front_end(cell, notebook.interrupt)
    assert "Stopped by an interrupt" in shown.error
    assert len(asked) == 1
    assert notebook.ok("1 + 1").result == "2"


STRIKES = {
    "while its thread starts": """
import threading
struck, name = threading.Thread, "start"
def strike(thread):
    before(thread)
    if thread.name.endswith("-asks"):
        signal.raise_signal(signal.SIGINT)
""",
    "just before the question": """
import xla_nb.views.loop
struck, name = xla_nb.views.loop._Question, "__init__"
def strike(*its):
    before(*its)
    signal.raise_signal(signal.SIGINT)
""",
    "just after the answer": """
import xla_nb.views.loop
struck, name = xla_nb.views.loop._Question, "_answer"
def strike(question):
    answer = before(question)
    signal.raise_signal(signal.SIGINT)
    return answer
""",
}


@pytest.mark.parametrize("when", STRIKES)
def test_interrupt_at_any_point_of_a_question_stops_only_that_run(when, front_end, notebook):
    notebook.ok(f"import signal\n{STRIKES[when]}\nbefore = getattr(struck, name)")
    notebook.ok("setattr(struck, name, strike)")
    try:
        answers = ["typed"] if when == "just after the answer" else []
        cell = "%%xla_spawn -n 1 --grace 1\ndef f(rank): return input('now? ') and input('more? ')"
        shown, asked = front_end(cell, *answers)
    finally:
        notebook.ok("setattr(struck, name, before)")
    assert "Stopped by an interrupt" in shown.error
    assert len(asked) == len(answers)
    slept = notebook.run("import time\nfor _ in range(15): time.sleep(0.1)\n'slept'")
    assert slept.result == "'slept'", slept.error


def test_question_of_leftover_thread_ends_with_the_cell(front_end, notebook):
    notebook.ok("%xla_start -n 1 --name outlived")
    try:
        shown, asked = front_end(
            "%%xla --group outlived\nimport threading, time\n"
            "threading.Thread(target=lambda: input('left? ')).start()\ntime.sleep(1)\n'ended'",
            lambda: None,
        )
        assert shown.status == "ok", shown.error
        assert len(asked) == 1
    finally:
        notebook.ok("%xla_shutdown outlived")


def test_question_of_dead_rank_is_withdrawn(front_end, notebook):
    cell = """%%xla_spawn -n 2 --keep-going --grace 5 -o went_on
import os, signal, threading, time
def f(rank):
    if rank == 0:
        threading.Timer(0.8, os.kill, (os.getpid(), signal.SIGKILL)).start()
        return input("dying? ")
    time.sleep(1.5)
    return "went on"
"""
    shown, asked = front_end(cell, lambda: None)
    assert shown.status == "ok", shown.error
    assert len(asked) == 1
    assert notebook.value("went_on.state.stopping, went_on[1]") == "('', 'went on')"


def test_question_is_asked_once_even_if_rank_is_slow_to_take_the_answer(
    front_end, notebook, tmp_path
):
    begin, stopped = tmp_path / "begin", tmp_path / "stopped"
    cell = f"""%%xla_spawn -n 1 -o taken
import os, subprocess
def f(rank):
    wait = "until [ -e {begin} ]; do sleep 0.02; done"
    stop = f"kill -STOP {{os.getpid()}}; touch {stopped}; sleep 1; kill -CONT {{os.getpid()}}"
    with subprocess.Popen(["sh", "-c", f"{{wait}}; {{stop}}"]):
        return input("slow? ")
"""

    def answer():
        begin.touch()
        while not stopped.exists():
            time.sleep(0.02)
        notebook.client.input("once")

    shown, _ = front_end(cell, answer)
    assert shown.status == "ok", shown.error
    assert notebook.value("taken[0]") == "'once'"
    assert not notebook.client.stdin_channel.msg_ready()


def test_front_end_without_input_raises_eoferror_with_advice(notebook):
    notebook.client.allow_stdin = False
    try:
        shown = notebook.run("%%xla_spawn -n 1\ndef f(rank): return input('name? ')")
    finally:
        notebook.client.allow_stdin = True
    assert "EOFError: This front end does not support input()." in shown.error
    assert "pass the answer as an argument" in shown.error


def test_background_run_cannot_ask(notebook):
    notebook.ok("%%xla_spawn -n 1 --bg -o mute\ndef f(rank): return input('name? ')")
    shown = notebook.run("mute.wait()")
    assert "EOFError: A run in the background (--bg) or on a cluster" in shown.error


def test_process_forked_by_rank_asks_as_that_rank(front_end, notebook):
    cell = """%%xla_spawn -n 1 -o asked_below
import multiprocessing
def below(queue): queue.put(input("below? "))
def f(rank):
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    process = context.Process(target=below, args=(queue,))
    process.start()
    answer = queue.get()
    process.join()
    return answer
"""
    shown, asked = front_end(cell, "yes")
    assert shown.status == "ok", shown.error
    assert asked == [("rank 0 asks: below? ", False)]
    assert notebook.value("asked_below[0]") == "'yes'"


def test_hang_report_names_wait_for_an_answer(front_end, notebook):
    cell = "%%xla_spawn -n 1 --hang-after 0.5 -o slow\ndef f(rank): return input('slow? ')"

    def answer():
        while "been waiting" not in notebook_hang():
            time.sleep(0.05)
        notebook.client.input("x")

    def notebook_hang():
        events = Path(sorted(Path(home).glob("runs/*/events.jsonl"))[-1]).read_text()
        return events if "HangReported" in events else ""

    home = notebook.value("__import__('xla_nb.record.files', fromlist=['']).home()")
    home = home.removeprefix("PosixPath('").removesuffix("')")
    front_end(cell, answer)
    assert "for an answer" in notebook.value("slow.state.hang.verdict")


def test_debugger_does_not_ask(front_end):
    shown, asked = front_end("%%xla_spawn -n 1\ndef f(rank):\n    breakpoint()")
    assert "breakpoint() and pdb exit at once" in shown.result
    assert asked == []
