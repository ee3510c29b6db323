"""Ranks that an interrupt does not end: the place reported is where they are when they are ended
by force, not where the interrupt reached them."""

import pytest

from tests.support.staying import (
    SEEN,
    SILENT,
    STAYS,
    interrupted,
    interrupted_twice,
    line_of,
    told,
    until,
    until_all_say,
)

CASES = pytest.mark.parametrize("body", STAYS.values(), ids=STAYS)
FIRST, *others = STAYS.items()
#: Each of these cases waits two seconds until ranks are ended by force.
FEW_CASES = pytest.mark.parametrize(
    "body",
    [FIRST[1], *(pytest.param(body, marks=pytest.mark.slow) for _, body in others)],
    ids=STAYS,
)


@pytest.fixture
def group(kernel, request):
    """The name of two live ranks for this test."""
    name = request.node.name.partition("[")[0]
    kernel.ok(f"%xla_start -n 2 --name {name}\nwhole_ = xla_nb.ranks({name!r})._group.run")
    yield name
    kernel.ok(f"%xla_shutdown {name}")


# ---------------------------------------------------------------- spawned ranks


STRIKE_EARLY = """
import os, signal
from xla_nb import api
shown_ = api.shown
def struck(*given):
    os.kill(os.getpid(), signal.SIGINT)
    return shown_(*given)
api.shown = struck
"""


def test_an_interrupt_between_a_launch_and_its_first_view_stops_the_run(kernel):
    kernel.ok(STRIKE_EARLY)
    shown = kernel.run("%%xla_spawn -n 2 -o staying_\nimport time\ntime.sleep(600)")
    kernel.ok("api.shown = shown_")
    assert "RunFailed: Stopped by an interrupt" in shown.error
    assert kernel.value("[run for run in api.living()]") == "[]"


@CASES
def test_spawned_ranks_interrupted_twice_are_reported_at_their_current_place(kernel, body):
    cell = interrupted_twice(kernel, "%%xla_spawn -n 2 --grace 600", body)
    said, place = told(kernel), f"{cell}, line {line_of(body, 'stays')}"
    assert f"Stopped again: sent SIGTERM to ranks 0, 1 (at {place})." in said
    assert f"Stopped: ranks 0, 1 at {place}" in said
    assert f"{cell}, line {line_of(body, 'struck')}" not in said


@FEW_CASES
def test_spawned_ranks_whose_cleanup_is_cut_short_are_reported_at_their_place(kernel, body):
    cell = interrupted(kernel, "%%xla_spawn -n 2 --grace 2", body)
    kernel.ok("staying_.join_end()")
    said, place = told(kernel), f"{cell}, line {line_of(body, 'stays')}"
    assert f"Sent SIGTERM to ranks 0, 1 (at {place}), which did not exit within 2 s of" in said
    assert f"{cell}, line {line_of(body, 'struck')}" not in said


def test_spawned_ranks_silent_since_the_interrupt_are_reported_where_it_reached_them(kernel):
    cell = interrupted(kernel, "%%xla_spawn -n 1 --grace 3", SILENT, ranks=1)
    kernel.ok("staying_.join_end()")
    said = told(kernel)
    place = f"{cell}, line {line_of(SILENT, 'struck')}"
    assert f"Sent SIGTERM to rank 0 (interrupted at {place}), which" in said


def test_ranks_ended_by_an_interrupt_are_reported_where_it_reached_them(kernel):
    body = """
        import time
        try:
            print('up', flush=True)
            while True: time.sleep(0.01)  # struck
        finally:
            print('stays', flush=True)
            while not staying_file.exists(): time.sleep(0.01)  # stays
    """
    kernel.ok("import pathlib, tempfile\nstaying_file = pathlib.Path(tempfile.mkdtemp()) / 'go'")
    cell = interrupted(kernel, "%%xla_spawn -n 2 --grace 600", body)
    until(kernel, SEEN.format(line_of(body, "stays"), 2))
    kernel.ok("staying_file.touch()\nstaying_.join_end()")
    kernel.ok("staying_file.unlink(); staying_file.parent.rmdir()")
    assert f"Stopped: ranks 0, 1 at {cell}, line {line_of(body, 'struck')}" in told(kernel)


# ---------------------------------------------------------------- live ranks


@CASES
def test_live_ranks_interrupted_twice_are_reported_at_their_current_place(kernel, group, body):
    cell = interrupted_twice(kernel, f"%%xla --group {group} --grace 600", body)
    place = f"{cell}, line {line_of(body, 'stays')}"
    did = f"{cell} was ended by force because ranks 0, 1 did not stop (at {place})"
    kernel.ok("whole_.join_end()")
    for run in ("staying_", "whole_"):
        assert f"{cell}, line {line_of(body, 'struck')}" not in told(kernel, run)
    assert did in told(kernel, "whole_")
    assert did in kernel.run(f"%%xla --group {group}\nrank").error


@FEW_CASES
def test_live_ranks_whose_cleanup_is_cut_short_are_reported_at_their_place(kernel, group, body):
    cell = interrupted(kernel, f"%%xla --group {group} --grace 2", body)
    kernel.ok("staying_.join_end()")
    said, place = told(kernel), f"{cell}, line {line_of(body, 'stays')}"
    assert f"Sent SIGTERM to ranks 0, 1 (at {place}), which did not exit" in said
    assert f"{cell}, line {line_of(body, 'struck')}" not in said


def test_live_ranks_stuck_in_a_function_of_another_cell_are_reported_there(kernel, group):
    other = kernel.ok(
        f"%%xla --group {group}\nimport time\ndef waits():\n"
        "    print('stays', flush=True)\n    while True: pass"
    ).number
    body = "print('up', flush=True)\ntry:\n    time.sleep(600)\nfinally:\n    waits()"
    cell = interrupted(kernel, f"%%xla --group {group} --grace 600", body)
    until_all_say(kernel, "stays")
    until(kernel, SEEN.format(5, 2))
    kernel.ok("staying_.stop()\nstaying_.join_end()")
    did = f"{cell} was ended by force because ranks 0, 1 did not stop (at Cell In[{other}], line 5)"
    assert did in kernel.run(f"%%xla --group {group}\nrank").error
