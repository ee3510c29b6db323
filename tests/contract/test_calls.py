"""A rank in a blocking call like `time.sleep` is shown as waiting, with a grey lane."""

import html
import re

WAITS = """\
import queue, subprocess, threading, time, xla_nb
def wait_in_calls(rank):
    if rank == 0:
        time.sleep({seconds})
    elif rank == 1:
        waiting = queue.SimpleQueue()
        try: waiting.get(timeout={seconds})
        except queue.Empty: pass
    elif rank == 2:
        threading.Event().wait({seconds})
    elif rank == 3:
        subprocess.run(["sleep", "{seconds}"])
    else:
        end = time.monotonic() + {seconds}
        while time.monotonic() < end:
            sum(range(1000))
"""
NAMES = ["time.sleep", "SimpleQueue.get", "Event.wait", "subprocess.run"]
# Prints what a user sees of the run in progress, once it shows all these calls.
SHOWN_WHILE = """\
waiting = xla_nb.spawn(wait_in_calls, n=5, bg=True, view="none")
until = time.monotonic() + 60
shown = ""
while time.monotonic() < until and not all(f"in {{name}}" in shown for name in {names}):
    time.sleep(0.1)
    shown = waiting._repr_mimebundle_()["text/plain"]
waiting.stop()
waiting.join_end(30)
print(shown)
"""


def lanes(page):
    """The description of each rank's lane."""
    return [html.unescape(told) for told in re.findall(r'alt="([^"]*)"', page)]


def test_blocking_call_of_a_rank_is_named_with_its_line(notebook):
    notebook.ok(WAITS.format(seconds=100))
    shown = notebook.ok(SHOWN_WHILE.format(names=NAMES)).stdout
    assert re.match(r"● 5 ranks: 4 waiting, 1 running · [\d.]+ s so far · ", shown), shown
    lines = [line for line in shown.splitlines() if re.match(r"rank \d:", line)]
    for name, place, line in zip(NAMES, (4, 7, 10, 12), lines, strict=False):
        assert re.search(rf": waiting at .*, line {place}: in {re.escape(name)}", line)
    assert ": running" in lines[4]
    assert " in " not in lines[4]


def test_seconds_in_blocking_calls_are_grey_in_the_saved_panel(notebook):
    cell = f"%%xla_spawn -n 5 --view panel\n{WAITS.format(seconds=2)}"
    page = notebook.ok(cell).page
    *waited, computed = lanes(page)
    assert len(waited) == 4
    assert all("in a blocking call" in told for told in waited)
    assert "in a blocking call" not in computed
    assert "> in a blocking call</span>" in page  # the legend
    assert "> waiting for data</span>" not in page  # not in the legend, as no lane has it


def test_call_that_loads_a_first_batch_is_waiting_for_data(notebook):
    cell = """\
%%xla_spawn -n 2 --view panel
import time, torch
class Slow(torch.utils.data.Dataset):
    def __len__(self): return 1
    def __getitem__(self, index): time.sleep(2)
def loads(rank):
    for _ in torch.utils.data.DataLoader(Slow(), collate_fn=list): pass
"""
    told = lanes(notebook.ok(cell).page)
    assert len(told) == 2
    assert all("waiting for data" in one for one in told)


def test_blocking_calls_of_live_ranks_are_shown(notebook):
    notebook.ok("%xla_start -n 2")
    page = notebook.ok("%%xla --view panel\nimport time\ntime.sleep(1.5)").page
    notebook.ok("%xla_shutdown")
    told = lanes(page)
    assert len(told) == 2
    assert all("in a blocking call" in one for one in told)


def test_loop_of_short_sleeps_is_mostly_grey(notebook):
    cell = """\
%%xla_spawn -n 2 --view panel
import time
def dozes(rank):
    for _ in range(22):
        time.sleep(0.18)
        end = time.monotonic() + 0.02
        while time.monotonic() < end: sum(range(1000))
"""
    for told in lanes(notebook.ok(cell).page):
        seconds = dict(re.findall(r"(running|in a blocking call) ([\d.]+) s", told))
        assert float(seconds["in a blocking call"]) > float(seconds.get("running", 0.0)), told
