"""Failures of live ranks: which state survives, which errors are shown, and correct later sums."""

import os
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.support.installed import need
from tests.support.kernel import Notebook
from tests.support.stopping import halt, survivors
from xla_nb import linux

BEGIN = """
    import os, random, signal, sys, time
    import torch, torch_xla, torch_xla.core.xla_model as xm
    held = rank
    def total(size):
        return xm.all_reduce('sum', torch.full((size,), rank + 1.0).to(device)).cpu().sum().item()
"""
PIDS = """
with open(f'/proc/{os.getppid()}/stat') as stat:
    server = int(stat.read().rpartition(')')[2].split()[1])
os.getpid(), os.getppid(), server
"""


def start(kernel, name, ranks=2, options=""):
    kernel.ok(f"%xla_start -n {ranks} --name {name} {options}")
    kernel.ok(f"%%xla --group {name}\n{textwrap.dedent(BEGIN)}")


def results(kernel, name, body, line=""):
    """Run a cell with this body; return the repr of its results."""
    kernel.ok(f"%%xla --group {name} {line} -o got_\n{body}")
    return kernel.value("dict(got_.results)")


@pytest.fixture
def group(kernel, request):
    """The name of two live ranks for this test; they are always shut down after it."""
    name = request.node.name.partition("[")[0]
    start(kernel, name)
    yield name
    kernel.ok(f"%xla_shutdown {name}")


def processes(kernel, name):
    """The PIDs of the ranks, then of their job and its fork server."""
    kernel.ok(f"%%xla --group {name} -o pids_\n{PIDS}")
    told = eval(kernel.value("dict(pids_.results)"))
    return [told[rank][0] for rank in sorted(told)], *told[0][1:]


# ---------------------------------------------------------------- interrupted collectives

FAILS = """
    def step(number):
        match number % 6:
            case 0: total(3)
            case 1: total(300_000)
            case 2: xm.all_gather(torch.ones(4).to(device)).cpu()
            case 3: xm.rendezvous(f'step {number}')
            case 4: xm.mesh_reduce('lengths', list(range(9 * rank)), len)
            case 5:
                reduced = xm.all_reduce('sum', torch.ones(2).to(device))
                torch_xla.sync()
                reduced.cpu()

    def fails(seed):
        chance = random.Random(seed)
        who = chance.sample(range(world_size), chance.choice([1, 1, 1, 2, world_size]))
        when = {one: chance.randrange(8) for one in who}
        how = chance.choice(['raises', 'exits', 'interrupts itself', 'skips', 'adds', 'returns'])
        for number in range(8):
            if when.get(rank) == number:
                if how == 'raises': raise ValueError(number)
                if how == 'exits': sys.exit(3)
                if how == 'interrupts itself': raise KeyboardInterrupt
                if how == 'skips': continue
                if how == 'adds': total(7)
                if how == 'returns': return
            step(number + seed)
"""
SUMS = "total(3), total(300_000), xm.mesh_reduce('ranks', rank, sum)"


@pytest.mark.parametrize("seeds", [range(12), pytest.param(range(200), marks=pytest.mark.slow)])
def test_sums_are_right_after_each_of_many_random_failures(kernel, seeds):
    name = f"sums{len(seeds)}"
    start(kernel, name, ranks=4)
    kernel.ok(f"%%xla --group {name}\n{textwrap.dedent(FAILS)}")
    for seed in seeds:
        kernel.run(f"%%xla --group {name}\nfails({seed})")
        right = dict.fromkeys(range(4), (30.0, 3_000_000.0, 6))
        assert (seed, results(kernel, name, SUMS)) == (seed, repr(right))
    kernel.ok(f"%xla_shutdown {name}")


ASK_EARLY = """
import threading
from xla_nb import live_questions
from xla_nb.messages.events import RankStarted
from xla_nb.run.group import Group
from xla_nb.run.run import Run
ready_, take_, asked_, said_ = Group.wait_until_ready, Run.take, threading.Event(), []
def take_late(run, event):
    if isinstance(event, RankStarted):
        asked_.wait(60)
    take_(run, event)
def ask_first(group, *more):
    try:
        live_questions.variables(group)
    except Exception as error:
        said_.append(repr(error))
    asked_.set()
    ready_(group, *more)
Group.wait_until_ready, Run.take = ask_first, take_late
"""


def test_starting_ranks_are_not_reported_as_ended(kernel):
    kernel.ok(ASK_EARLY)
    kernel.ok("%xla_start -n 1 --name early")
    kernel.ok("Group.wait_until_ready, Run.take = ready_, take_\n%xla_shutdown early")
    assert "UsageError('The live ranks are still starting.')" in kernel.value("said_[0]")


# ---------------------------------------------------------------- stopping


def test_a_stop_waits_for_a_rank_that_has_not_started_the_cell(kernel, group):
    (_, second), _, _ = processes(kernel, group)
    halt(second)
    kernel.ok(f"%%xla --group {group} --bg -o begun_\nprint('here', flush=True)\ntotal(3)")
    kernel.ok("while 'here' not in begun_.output(0): pass")
    kernel.ok("begun_.stop()\nbegun_.join_end()")
    assert "Stopped by run.stop()" in kernel.value("repr(begun_)")
    assert results(kernel, group, "held, total(1)") == "{0: (0, 3.0), 1: (1, 3.0)}"


STUBBORN = """
while True:
    try:
        print('here', flush=True)
        time.sleep(600)
    except KeyboardInterrupt:
        print('no', flush=True)
"""


def test_ranks_that_do_not_stop_are_lost_and_this_and_later_cells_report_it(kernel, group):
    ended = kernel.run(f"%%xla --group {group} --timeout 0.1 --grace 0.1\n{STUBBORN}")
    assert "Timed out after 0.1 s (timeout); live ranks 0, 1 are lost" in ended.error
    shown = kernel.run(f"%%xla --group {group}\nheld")
    did = f"Cell In[{ended.number}] was ended by force because ranks 0, 1 did not stop"
    assert did in shown.error
    assert "%xla_restart" in shown.error


def test_a_second_stop_ends_ranks_that_ignored_the_first(kernel, group):
    kernel.ok(f"import xla_nb\nwhole_ = xla_nb.ranks({group!r})._group.run")
    kernel.ok(f"%%xla --group {group} --grace 600 --bg -o stubborn_\n{STUBBORN}")
    for word in ("here", "no"):
        kernel.ok(f"while not all({word!r} in stubborn_.output(r) for r in range(2)): pass")
        kernel.ok("stubborn_.stop()")
    kernel.ok("stubborn_.join_end()")
    assert "live ranks 0, 1 are lost" in kernel.value("repr(stubborn_)")
    kernel.ok("whole_.join_end()")
    assert "was ended by force because ranks 0, 1 did not stop" in kernel.value("repr(whole_)")
    assert "ended by force" in kernel.run(f"%%xla --group {group}\nheld").error


def test_an_interrupted_cell_leaves_the_ranks_alive(kernel, group):
    interrupted = []

    def interrupt(shown):
        if "[0] here" in shown.lines and not interrupted:
            interrupted.append(kernel.interrupt())

    cell = f"%%xla --group {group} --view text\nprint('here', flush=True)\ntime.sleep(600)"
    assert "Stopped by an interrupt" in kernel.run(cell, during=interrupt).error
    assert results(kernel, group, "held") == "{0: 0, 1: 1}"


# ---------------------------------------------------------------- collectives in native code

WORLD = """
import time, jax, jax.numpy as jnp
from jax.experimental import multihost_utils
held = rank + 1
def total():
    return float(multihost_utils.process_allgather(jnp.full(3, rank + 1.0)).sum())
total()
"""


@pytest.fixture
def world(tmp_path):
    """A kernel with three live ranks in one JAX world over gloo."""
    need("jax")
    kernel = Notebook(XLA_NB_HOME=str(tmp_path / "home"))
    try:
        kernel.ok("import xla_nb\n%load_ext xla_nb")
        kernel.ok("%xla_start -n 3 --runtime torchax --grace 2", timeout=300)
        assert results(kernel, "ranks", WORLD) == "{0: 18.0, 1: 18.0, 2: 18.0}"
        yield kernel
    finally:
        kernel.close()


@pytest.mark.slow
def test_ranks_waiting_in_gloo_for_a_failed_rank_are_ended_by_force(world):
    raises = "if rank == 1: raise ValueError('no')"
    world.run(f"%%xla\n{raises}\ntime.sleep(0.1)")
    assert results(world, "ranks", "total()") == "{0: 18.0, 1: 18.0, 2: 18.0}"
    shown = world.run(f"%%xla\n{raises}\ntotal()")
    assert "ValueError: no" in shown.error
    lost = f"Cell In[{shown.number}] was ended by force because ranks 0, 2 did not stop"
    assert lost in shown.stdout
    again = world.run("%%xla\nheld")
    assert lost in again.error
    assert "%xla_restart" in again.error
    assert world.value("xla_nb.ranks().pull('held', 1)") == "2"
    world.ok("%xla_restart")
    assert results(world, "ranks", WORLD) == "{0: 18.0, 1: 18.0, 2: 18.0}"


# ---------------------------------------------------------------- processes that end


def test_ranks_are_lost_with_their_job_and_can_be_restarted(kernel, group):
    _, job, _ = processes(kernel, group)
    os.kill(job, signal.SIGKILL)
    kernel.ok(f"__import__('xla_nb.live').live.of({group!r}).run.join_end()")
    shown = kernel.run(f"%%xla --group {group}\nheld")
    assert "lost: their job was killed by SIGKILL" in shown.error
    kernel.ok(f"%xla_restart {group}")
    assert results(kernel, group, "rank") == "{0: 0, 1: 1}"


STOPS_ITS_JOB = """
from tests.support.stopping import halt
if rank == 0:
    halt(os.getppid())
"""


def test_a_stopped_job_does_not_delay_cells(kernel, group):
    _, job, _ = processes(kernel, group)
    kernel.ok(f"%%xla --group {group}\n{STOPS_ITS_JOB}")
    assert results(kernel, group, "held") == "{0: 0, 1: 1}"
    os.kill(job, signal.SIGCONT)


@pytest.mark.slow
def test_a_rank_stopped_before_the_cell_is_reported_as_not_responding(kernel, group):
    (_, second), _, _ = processes(kernel, group)
    halt(second)
    kernel.ok(f"%%xla --group {group} --bg --hang-after 12 -o late_\nheld")
    kernel.ok("import time\nwhile late_.state.hang is None and not late_.done: time.sleep(0.05)")
    told = kernel.value("late_.state.hang.verdict")
    assert "rank 1 is not responding (stopped, or blocked in native code)" in told
    os.kill(second, signal.SIGCONT)
    kernel.ok("late_.wait()")
    assert kernel.value("dict(late_.results)") == "{0: 0, 1: 1}"


ONCE_ASKED = """
import os, signal, threading
from xla_nb import live
def interrupt_once_asked(group):
    while not group._programs: pass
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt_once_asked, args=(live.of({group!r}),)).start()
%xla_vars --group {group}
"""


def test_interrupting_a_question_to_ranks_raises_a_short_error_and_keeps_them(kernel, group):
    kernel.ok(
        f"%%xla --group {group}\nimport torch\nmuch = [torch.rand(999, 999) for _ in range(50)]"
    )
    shown = kernel.run(ONCE_ASKED.format(group=group))
    assert (shown.status, shown.error) == (
        "error",
        "Interrupted: Interrupted before all ranks had answered.",
    )
    kernel.ok(f"%%xla --group {group} -o after_it\nlen(much)")
    assert kernel.value("dict(after_it.results)") == "{0: 50, 1: 50}"


def test_a_cell_reports_that_its_job_was_killed(kernel, group):
    kills = "if rank == 0: os.kill(os.getppid(), signal.SIGTERM)\ntime.sleep(600)"
    shown = kernel.run(f"%%xla --group {group}\n{kills}")
    assert "Ranks 0, 1 were lost: their job was killed by SIGTERM" in shown.error


@pytest.mark.slow
def test_ranks_are_lost_with_their_fork_server_and_can_be_restarted(tmp_path):
    kernel = Notebook(XLA_NB_HOME=str(tmp_path / "home"))
    try:
        kernel.ok("%load_ext xla_nb")
        start(kernel, "ranks")
        pids, job, server = processes(kernel, "ranks")
        os.kill(server, signal.SIGKILL)
        kernel.ok("__import__('xla_nb.live').live.of().run.join_end()")
        shown = kernel.run("%%xla\nheld")
        assert "the process that starts and ends ranks was killed by SIGKILL" in shown.error
        assert survivors([*pids, job]) == []
        kernel.ok("%xla_restart")
        assert results(kernel, "ranks", "rank") == "{0: 0, 1: 1}"
    finally:
        kernel.close()


@pytest.mark.slow
def test_live_ranks_keep_working_after_their_records_were_removed(tmp_path):
    kernel = Notebook(XLA_NB_HOME=str(tmp_path / "home"))
    try:
        kernel.ok("%load_ext xla_nb")
        start(kernel, "ranks")
        shutil.rmtree(tmp_path / "home" / "runs")
        for _ in range(2):
            kernel.ok("%%xla -o kept_\nprint('said', rank)\nheld")
            assert kernel.value("dict(kept_.results), kept_.output(1)") == (
                "({0: 0, 1: 1}, 'said 1\\n')"
            )
        kernel.ok("%xla_shutdown")
    finally:
        kernel.close()


def test_other_ranks_can_be_read_after_one_was_killed_in_a_collective(kernel, group):
    shown = kernel.run(
        f"%%xla --group {group}\nif rank == 0: os.kill(os.getpid(), signal.SIGKILL)\ntotal(3)"
    )
    assert "Rank 0 was killed by SIGKILL" in shown.error
    assert kernel.value(f"xla_nb.ranks({group!r}).pull('held', 1)") == "1"


def test_killing_a_rank_before_it_starts_the_cell_does_not_affect_the_others(kernel, group):
    (_, second), _, _ = processes(kernel, group)
    halt(second)
    kernel.ok(f"%%xla --group {group} --bg -o begun_\nheld = 'new'")
    kernel.ok("while begun_.state.ranks[0].phase != 'finished': pass")
    os.kill(second, signal.SIGKILL)
    kernel.ok("begun_.join_end()")
    assert "Rank 1 was killed by SIGKILL" in kernel.value("repr(begun_)")
    assert kernel.value(f"xla_nb.ranks({group!r}).pull('held', 0)") == "'new'"


def test_a_question_mark_names_the_rank_that_answered(kernel, group):
    kernel.run(f"%%xla --group {group}\nimport os\nof_rank = rank\nif rank == 0: os._exit(1)")
    asked = f"%%xla --group {group}\nof_rank?"
    assert "On rank 1" in kernel.ok(asked).stdout
    kernel.run(f"%%xla 1 --group {group}\nimport os\nos._exit(1)")
    assert f"Start new ones: %xla_restart {group}" in kernel.run(asked).error


# ---------------------------------------------------------------- cells that damage their rank


@pytest.mark.parametrize(
    "closes",
    [
        "sys.stdout.close()",
        "sys.stdout = None",
        "os.close(1)\nos.close(2)",
        "sys.stdout = sys.__stdout__\nsys.stdout.close()\nsys.stderr.close()",
    ],
)
def test_a_cell_can_print_after_an_earlier_one_closed_the_output(kernel, group, closes):
    kernel.run(f"%%xla --group {group}\n{closes}")
    shown = kernel.ok(
        f"%%xla --group {group} --view text\nprint('out')\nprint('e', file=sys.stderr)"
    )
    assert {"[0] out", "[1] out"} <= set(shown.lines)
    assert {"[0] e", "[1] e"} <= set(shown.error_lines)


def test_stdin_is_empty_in_the_cell_after_exit(kernel, group):
    kernel.ok(f"%%xla --group {group}\nexit()")
    assert results(kernel, group, "sys.stdin.read()") == "{0: '', 1: ''}"


def test_breakpoint_after_exit_explains_that_it_is_not_available(kernel, group):
    kernel.ok(f"%%xla --group {group}\nexit()")
    for cell in ("breakpoint()", "try: exit()\nexcept SystemExit: breakpoint()"):
        shown = kernel.run(f"%%xla --group {group}\n{cell}")
        assert "breakpoint() and pdb exit at once" in shown.result
        assert "closed file" not in shown.result


def test_a_process_forked_by_the_notebook_cannot_use_its_ranks(kernel, group, tmp_path):
    said = tmp_path / "said"
    kernel.ok(
        f"import os, pathlib\nranks_ = xla_nb.ranks({group!r})\npid_ = os.fork()\n"
        "if pid_ == 0:\n"
        "    try: ranks_.run('1')\n"
        f"    except BaseException as error: pathlib.Path({str(said)!r}).write_text(str(error))\n"
        "    os._exit(0)\n"
        "os.waitpid(pid_, 0)"
    )
    assert "belong to the process that started them" in said.read_text()
    assert results(kernel, group, "held, total(1)") == "{0: (0, 3.0), 1: (1, 3.0)}"


def handles(kernel, name, handler):
    """Install this handler of SIGUSR1 on the ranks; return their PIDs once they are idle."""
    pids, _, _ = processes(kernel, name)
    kernel.ok(f"%%xla --group {name}\nbefore = signal.signal(signal.SIGUSR1, {handler})")
    while not all("poll" in Path(f"/proc/{pid}/wchan").read_text() for pid in pids):
        pass  # a cell may have ended a moment ago
    return pids


def test_an_error_in_a_signal_handler_of_an_idle_rank_is_reported_and_harmless(kernel, group):
    first, _ = handles(kernel, group, "lambda *_: 1 / 0")
    os.kill(first, signal.SIGUSR1)
    kernel.ok(f"state_ = xla_nb.ranks({group!r})._group.run.state\nwhile not state_.notices: pass")
    told = "A signal handler raised ZeroDivisionError while rank 0 was idle."
    assert told in kernel.value("state_.notices[0].text")
    assert results(kernel, group, "held, total(1)") == "{0: (0, 3.0), 1: (1, 3.0)}"


def test_the_report_of_an_idle_ranks_exit_mentions_no_function(kernel, group):
    first, _ = handles(kernel, group, "lambda *_: os._exit(9)")
    os.kill(first, signal.SIGUSR1)
    kernel.ok(f"group_ = xla_nb.ranks({group!r})._group\nwhile len(group_.alive) > 1: pass")
    assert (
        "Rank 0 exited with status 9. The state" in kernel.run(f"%%xla --group {group}\nheld").error
    )


def test_a_rank_that_cannot_start_the_next_cell_reports_why(kernel, group):
    limit = "resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))"
    kernel.run(f"%%xla --group {group}\nimport resource\nif rank == 1: {limit}")
    kernel.run(f"%%xla --group {group}\nheld")
    assert "Too many open files" in kernel.run(f"%%xla --group {group}\nheld").error


def test_a_cell_can_be_stopped_after_an_earlier_one_ignored_interrupts(kernel, group):
    kernel.ok(f"%%xla --group {group}\nbefore = signal.signal(signal.SIGINT, signal.SIG_IGN)")
    shown = kernel.run(f"%%xla --group {group} --timeout 0.1 --grace 600\ntime.sleep(600)")
    assert "Timed out" in shown.error
    assert results(kernel, group, "held") == "{0: 0, 1: 1}"


def test_the_lock_of_a_dead_rank_is_released_for_the_others(kernel, group):
    shown = kernel.run(
        f"%%xla --group {group} --grace 600\n"
        "lock.acquire()\nif rank == 0: os._exit(3)\nlock.release()\ntime.sleep(0)"
    )
    assert "Rank 0 exited with status 3 before finishing" in shown.error
    assert results(kernel, group, "with lock: got = held\ngot", "1") == "{1: 1}"
    notices = kernel.value(f"[n.text for n in xla_nb.ranks({group!r})._group.run.state.notices]")
    assert "Rank 0 died while holding `lock`; it has been released." in notices


# ---------------------------------------------------------------- replay


DIES = """
import os, signal
from xla_nb.run.group import Group
ready_ = Group.wait_until_ready
def die(group, *more):
    while not all(rank.pid for rank in group.run.state.ranks.values()): pass
    os.kill(group.run.state.ranks[1].pid, signal.SIGKILL)
    while not group.run.state.troubled: pass
    ready_(group, *more)
Group.wait_until_ready = die
"""


def test_values_that_were_only_read_are_not_replayed(kernel, group):
    kernel.ok(f"%%xla --group {group}\nimport os\npids = [os.getpid()]")
    kernel.ok(f"ranks_ = xla_nb.ranks({group!r})\nranks_['pids[0]'], ranks_.pull('pids')")
    kernel.ok("ranks_.pull('pids.append(1)', rank=1)")
    said = kernel.ok(f"%xla_restart {group} --replay").stdout
    assert "Replaying `pids.append(1)` …" in said
    assert "`pids`" not in said
    assert results(kernel, group, "len(pids)") == "{0: 1, 1: 2}"


def test_a_replay_is_still_possible_after_a_rank_died_during_the_restart(kernel):
    group = "a_rank_dies"
    start(kernel, group, options="--grace 1")
    kernel.ok(f"%%xla --group {group}\nkept = 7")
    kernel.ok(DIES)
    failed = kernel.run(f"%xla_restart {group} --replay")
    kernel.ok("Group.wait_until_ready = ready_")
    assert "SIGKILL" in failed.error
    assert "%xla_restart" in kernel.run(f"%%xla --group {group}\nkept").error
    kernel.ok(f"%xla_restart {group} --replay")
    assert results(kernel, group, "kept") == "{0: 7, 1: 7}"
    kernel.ok(f"%xla_shutdown {group}")


# ---------------------------------------------------------------- scripts

SCRIPT = """
    import os, xla_nb

    factor = 3

    def scaled(x):
        return x * factor

    with xla_nb.ranks(n=2, view="none") as ranks:
        ranks.run("kept = rank + 1")
        ranks.push(pushed=[5])
        print(ranks.call(scaled, 7).results, ranks["scaled(kept) + pushed[0]"])
        factor = 10
        print(ranks["scaled(kept)"])
        try:
            ranks.run("if rank == 1: raise ValueError('no')")
        except xla_nb.RunFailed as failed:
            print(str(failed).splitlines()[0])
        print(ranks.pull("kept", 1), ranks["os.getppid()"][0])
"""


def test_a_script_can_use_live_ranks_and_leaves_no_processes(tmp_path):
    path = tmp_path / "script.py"
    path.write_text(textwrap.dedent(SCRIPT))
    command = [sys.executable, path]
    ran = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=300)
    told = [line for line in ran.stdout.splitlines() if line[0] in "{R2"]
    assert told[:2] == ["{0: 21, 1: 21} {0: 8, 1: 11}", "{0: 10, 1: 20}"]
    assert told[2].startswith("Rank 1 failed at statements")
    assert told[3].startswith("2 ")
    assert not linux.is_alive(int(told[3].split()[1]))


INTERRUPTED = """
from xla_nb.simulation.programs import Programs
begin = Programs.begin
def interrupted(self, *given):
    Programs.begin = begin
    begin(self, *given)
    raise KeyboardInterrupt
Programs.begin = interrupted
"""


def test_values_that_an_interrupted_rank_missed_are_re_sent(kernel, group):
    kernel.ok("holder = [0]\ndef get(): return holder[0]")
    assert results(kernel, group, "get()") == "{0: 0, 1: 0}"
    results(kernel, group, INTERRUPTED, "1")
    kernel.ok("holder[0] = 5")
    assert "KeyboardInterrupt" in kernel.run(f"%%xla --group {group}\nget()").error
    assert results(kernel, group, "get()") == "{0: 5, 1: 5}"


STOPPED = """
from xla_nb.messages import events
from xla_nb.run.run import Run
take = Run.take
def taken(run, event):
    if run is late and isinstance(event, events.StopRequested):
        go.touch()
        with run.changed:
            run.changed.wait_for(lambda: run.state.settled, 3)  # its thread may wait for this one
    take(run, event)
Run.take = taken
late.stop()
Run.take = take
late.join_end()
"""


def test_ranks_that_return_while_being_stopped_stay_alive(kernel, group, tmp_path):
    kernel.ok(f"from pathlib import Path\ngo = Path({str(tmp_path / 'go')!r})")
    waits = "while not go.exists(): time.sleep(0.01)"
    kernel.ok(f"%%xla 0 --group {group} --bg -o late\n{waits}")
    kernel.ok(STOPPED)
    assert results(kernel, group, "held") == "{0: 0, 1: 1}"
