"""The saved output of a run has the order in which it was shown.

A rank writes its next line once the notebook has shown the previous line, so only one order is
possible.
"""

import html
import re

import pytest

RELAY = """\
%%xla_spawn -n 4 {options} -o {run}
import sys, time
from pathlib import Path

def told(what):
    while not Path({folder!r}, what).exists():
        time.sleep(0.005)

def say(what, file=None):
    print(what, file=file, flush=True)

def relay(rank):
    say("all begin")
    if rank == 3:
        told("all begin")
        say("relay 1")
        told("relay 2")
        say("relay 3")
    if rank == 1:
        told("relay 1")
        say("relay 2", sys.stderr)
        told("relay 3")
        say("relay 4")
    told("relay 4")
    say("all end")
"""
SAID = ["all begin", "relay 1", "relay 2", "relay 3", "relay 4"]
IN_ORDER = [
    "[0–3] all begin",
    "[3] relay 1",
    "[1] (stderr) relay 2",
    "[3] relay 3",
    "[1] relay 4",
    "[0–3] all end",
]
FLOOD = """\
%%xla_spawn -n 2 --view {view} -o {run}
import time
from pathlib import Path

def told(what):
    while not Path({folder!r}, what).exists():
        time.sleep(0.005)

def flood(rank):
    if rank == 0:
        print(*("before %d" % n for n in range(3000)), sep="\\n", flush=True)
        told("between")
        print(*("after %d" % n for n in range(3000)), sep="\\n", flush=True)
    else:
        told("before 0")
        print("between", flush=True)
"""


def relayed(notebook, cell, folder, words):
    """Run a cell; each of `words` that the notebook shows becomes a file."""

    def tell(shown):
        # As text, or in a message to the panel's page.
        newest = shown.messages[-1]
        for word in words:
            if newest["msg_type"] in ("stream", "comm_msg") and word in str(newest["content"]):
                (folder / word).touch()

    shown = notebook.run(cell, during=tell)
    assert shown.status == "ok", shown.error
    return shown


def output(text):
    return [line for line in text.splitlines() if line.startswith(("[", "The order"))]


def words(page):
    """The visible text of HTML, on one line."""
    return " ".join(html.unescape(re.sub(r"<style.*?</style>|<[^>]*>", " ", page)).split())


@pytest.mark.parametrize("view", ["text", "panel"])
def test_lines_of_ranks_and_streams_stay_in_time_order(notebook, tmp_path, view):
    run = f"relayed_{view}"
    cell = RELAY.format(options=f"--view {view}", run=run, folder=str(tmp_path))
    shown = relayed(notebook, cell, tmp_path, SAID)
    left = [m["content"]["data"] for m in shown.messages if "text/html" in str(m["content"])]
    pictures = [data for data in left if "4 ranks finished" in data.get("text/plain", "")]
    again = notebook.ok(f"xla_nb.open_run({run}.name)").data
    for data in (pictures[-1], notebook.ok(run).data, again):
        assert output(data["text/plain"]) == IN_ORDER
        told = "0–3 all begin 3 relay 1 1 stderr relay 2 3 relay 3 1 relay 4 0–3 all end"
        assert told in words(data["text/html"])


def test_flood_keeps_its_ends_interleaved_lines_and_the_omitted_count(notebook, tmp_path):
    cell = FLOOD.format(view="text", run="flooded", folder=str(tmp_path))
    relayed(notebook, cell, tmp_path, ["before 0", "between"])
    for shown in ("flooded", "xla_nb.open_run(flooded.name)"):
        lines = output(notebook.ok(shown).data["text/plain"])
        assert lines[:25] == [f"[0] before {n}" for n in range(25)]
        assert lines[25:27] == ["[0] … 5,950 lines left out, in rank-0.out", "[1] between"]
        assert lines[27:] == [f"[0] after {n}" for n in range(2975, 3000)]


BARS = """\
%%xla_spawn -n 2 --view {view} -o {run}
import sys, time
from pathlib import Path

def told(what):
    while not Path({folder!r}, what).exists():
        time.sleep(0.005)

def bars(rank):
    if rank == 0:
        print("\\rbar 0: 100%", file=sys.stderr, flush=True)
        told("bar 0: 100%")
        print("after 0", flush=True)
        told("after 0")
        print("\\rbar 1:  50%", end="", file=sys.stderr, flush=True)
        Path({folder!r}, "half").touch()
        told("again")
        print("\\rbar 1: 100%", file=sys.stderr, flush=True)
        print("after 1", flush=True)
        told("bar 1: 100%")
    else:
        told("half")
        print("looked", flush=True)
        told("looked")
        print("again", flush=True)  # the half bar has been shown by now
        told("bar 1: 100%")
"""


@pytest.mark.parametrize("view", ["text", "panel"])
def test_lines_starting_with_carriage_return_are_shown_in_order(notebook, tmp_path, view):
    """A rank prints nothing else until its bar is shown."""
    cell = BARS.format(view=view, run=f"bars_{view}", folder=str(tmp_path))
    relayed(notebook, cell, tmp_path, ["bar 0: 100%", "after 0", "looked", "again", "bar 1: 100%"])
    lines = output(notebook.ok(f"bars_{view}").data["text/plain"])
    assert lines == [
        "[0] (stderr) bar 0: 100%",
        "[0] after 0",
        "[1] looked",
        "[1] again",
        "[0] (stderr) bar 1: 100%",
        "[0] after 1",
    ]


@pytest.mark.parametrize("shown", ["tqdm_run", "xla_nb.open_run(tqdm_run.name)"])
def test_bars_alone_are_in_order(notebook, shown):
    cell = "%%xla_spawn -n 2 -o tqdm_run --view panel\nfrom tqdm import tqdm\ndef f(rank):\n"
    notebook.ok(f"{cell}    for _ in tqdm(range(3)): pass")
    said = "was not recorded"
    assert said not in notebook.ok(shown).data["text/plain"]


BESIDE = """\
%%xla_spawn -n 2 {options} -o beside
import sys
from tqdm import tqdm

def epochs(rank):
    for epoch in tqdm(range(3), desc="epochs"):
        for batch in tqdm(range(2), desc="batches", leave=False):
            pass
        print("epoch", epoch, flush=True)
    print("trained")
    print("warned", file=sys.stderr)
    print("end")
"""


def test_text_view_keeps_the_line_order_of_a_rank(notebook):
    body = "def f(rank):\n    for n in range(5):\n        print('step', n)\n"
    body += "        print('warned', n, file=sys.stderr)"
    shown = notebook.ok(f"%%xla_spawn -n 2 --view text\nimport sys\n{body}")
    written = [m["content"]["text"] for m in shown.messages if m["msg_type"] == "stream"]
    lines = [line for line in "".join(written).splitlines() if line.startswith("[0, 1]")]
    assert lines == [f"[0, 1] {what} {n}" for n in range(5) for what in ("step", "warned")]


def test_alternating_streams_do_not_flood_the_front_end(notebook):
    body = "def f(rank):\n    for n in range(900):\n        print('step', n)\n"
    body += "        print('warned', n, file=sys.stderr)"
    shown = notebook.ok(f"%%xla_spawn -n 1 --view text\nimport sys\n{body}")
    written = [m["content"]["text"] for m in shown.messages if m["msg_type"] == "stream"]
    assert "".join(written).count("[0] ") >= 1800
    assert len(written) < 600  # front ends drop messages above their rate limit


@pytest.mark.parametrize("options", ["--view text", "--view panel", "--view none"])
def test_lines_printed_between_bars_and_warnings_keep_their_place(notebook, options):
    notebook.ok(BESIDE.format(options=options))
    for shown in ("beside", "xla_nb.open_run(beside.name)"):
        lines = [line for line in output(notebook.ok(shown).data["text/plain"]) if line[0] == "["]
        (bar,) = (line for line in lines if "epochs: 100%" in line)
        assert lines == [
            "[0, 1] epoch 0",
            "[0, 1] epoch 1",
            "[0, 1] epoch 2",
            bar,
            "[0, 1] trained",
            "[0, 1] (stderr) warned",
            "[0, 1] end",
        ]


def test_run_without_a_follower_notes_the_unrecorded_order(notebook):
    cell = "%%xla_spawn -n 2 --view none -o unseen\nimport sys\ndef f(rank):\n"
    notebook.ok(f"{cell}    print('a', rank)\n    print('b', file=sys.stderr)")
    data = notebook.ok("xla_nb.open_run(unseen.name)").data
    said = "The order of lines from different ranks was not recorded."
    assert output(data["text/plain"]) == ["[0] a 0", "[1] a 1", "[0, 1] (stderr) b", said]
    assert said in words(data["text/html"])
