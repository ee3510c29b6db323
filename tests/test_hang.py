"""Hang reports of real runs: reported, stored, ended by progress, and stopping the run."""

import pytest

PATIENCE = 120  # seconds to wait for an expected event

HELP = f"""
import os, signal
def told(run, words):
    "The report with these words in its verdict."
    def is_there():
        return run.done or (run.state.hang and words in run.state.hang.verdict)
    with run.changed:
        assert run.changed.wait_for(is_there, {PATIENCE}), run.state.hang
    assert run.state.hang and words in run.state.hang.verdict, run
    return run.state.hang
def over(run):
    with run.changed:
        assert run.changed.wait_for(lambda: run.state.hang_over, {PATIENCE})
    return run.state.hang_over
def begun(run):
    def have_begun():
        ranks = run.state.ranks
        return ranks and all(rank.pid for rank in ranks.values())
    with run.changed:
        assert run.changed.wait_for(have_begun, {PATIENCE})
def ended(run):
    run.stop()
    try: run.wait({PATIENCE})
    except xla_nb.RunFailed: pass
"""


@pytest.fixture
def helped(notebook):
    notebook.ok(HELP)
    return notebook


DEADLOCK = """
%%xla_spawn -n 4 -o deadlock --bg --view none --hang-after 2
def deadlock_of_two(rank):
    import queue, torch, torch_xla, torch_xla.core.xla_model as xm
    x = torch.ones(2, device=torch_xla.device())
    if rank == 1:
        queue.Queue().get()  # rank 1
    xm.all_reduce("sum", x)  # others
""".strip()


def test_a_report_on_a_collective_names_the_missing_rank_and_its_place(helped):
    cell = f"Cell In[{helped.ok(DEADLOCK).number}]"
    at = {line.rpartition("# ")[2]: n for n, line in enumerate(DEADLOCK.splitlines(), 1)}
    try:
        helped.ok('report = told(deadlock, "all_reduce")')
        verdict = helped.value("report.verdict").strip("'\"")
        helped.ok("again = xla_nb.open_run(deadlock.name)")
    finally:
        helped.ok("ended(deadlock)")
    assert verdict.startswith("No progress for over ")
    assert f"s: rank 1 is in `Queue.get` at {cell}, line {at['rank 1']}" in verdict
    assert "anks 0, 2, 3 have been waiting " in verdict
    assert verdict.endswith(f" in all_reduce at line {at['others']} for rank 1")
    groups = "[(group.ranks, group.place) for group in report.groups]"
    assert helped.value(groups) == repr(
        [((1,), f"{cell}, line {at['rank 1']}"), ((0, 2, 3), f"{cell}, line {at['others']}")]
    )
    assert "in get" in helped.value("report.groups[0].stack")
    assert "in all_reduce sum f32[2] for rank 1" in helped.value("report.groups[1].note")
    assert helped.value("again.state.hang == report") == "True"
    assert verdict in helped.value("again._repr_mimebundle_()['text/plain']")


STOPPED = """
%%xla_spawn -n 3 -o halted --bg --view none --hang-after 12
def sleeps(rank):
    import time
    while True:
        time.sleep(0.05)
        print("on")
""".strip()


def test_a_stopped_rank_is_reported_as_not_responding(helped):
    """The rank's later progress is reported too, and a run with a stopped rank can be stopped."""
    helped.ok(STOPPED)
    try:
        helped.ok("begun(halted)\npid = halted.state.ranks[2].pid\nos.kill(pid, signal.SIGSTOP)")
        verdict = helped.value('told(halted, "not responding").verdict')
        assert "rank 2 is not responding (stopped, or blocked in native code)" in verdict
        helped.ok("os.kill(pid, signal.SIGCONT)")
        assert "Rank 2 is making progress again" in helped.value("over(halted)")
        helped.ok("os.kill(pid, signal.SIGSTOP)")
    finally:
        helped.ok("ended(halted)")
    assert helped.value("halted.done, halted.state.ranks[2].phase") == "(True, 'stopped')"


LOCK = """
%%xla_spawn -n 3 -o locked --bg --view none
def takes(rank, lock):
    import os, time
    if rank == 1:
        lock.acquire()
        open("taken", "w").close()
        return
    while not os.path.exists("taken"): time.sleep(0.01)
    with lock:  # waits
        pass
""".strip()


def test_a_report_names_a_rank_that_returned_while_holding_the_lock(helped, tmp_path):
    helped.ok(f"before = os.getcwd(); os.chdir({str(tmp_path)!r})")
    number = helped.ok(LOCK).number
    try:
        verdict = helped.value('told(locked, "`lock`").verdict').strip("'\"")
    finally:
        helped.ok("ended(locked); os.chdir(before)")
    line = 1 + next(n for n, text in enumerate(LOCK.splitlines()) if text.endswith("# waits"))
    assert verdict.startswith("Rank 1 has returned; ranks 0, 2 have been waiting ")
    assert verdict.endswith(f" for `lock` at Cell In[{number}], line {line}, which rank 1 holds")


def test_hang_stop_stops_the_run_with_the_verdict_as_headline(notebook):
    cell = DEADLOCK.replace("--bg --view none", "--hang-stop --view text")
    shown = notebook.run(cell)
    assert shown.ename == "RunFailed"
    verdict = shown.error.splitlines()[-1]
    assert "No progress for" in shown.error or "joining" in verdict
    assert "Hang report: " in shown.stderr
    assert notebook.value("deadlock.state.outcome") == "'stopped'"
    told = "f'Stopped at a hang: {deadlock.state.hang.verdict}'"
    assert notebook.value(f"deadlock.state.stopping == {told}") == "True"
    assert notebook.value("list(deadlock.state.conclusions)") == "[]"  # would repeat the verdict


def test_hang_settings_can_be_set_for_the_notebook(notebook):
    try:
        shown = notebook.ok("%xla_config hang_after=5m hang_stop=yes").stdout
        assert "hang_after  300.0" in shown
        assert "hang_stop   True" in shown
    finally:
        notebook.ok("%xla_config reset")
