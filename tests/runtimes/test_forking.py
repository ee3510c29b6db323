"""Rank processes as their job sees them: one rank per process, and every death is reported."""

import subprocess
import sys
import textwrap

import pytest

SCRIPT = """
import os, queue, select, signal, threading, time
from xla_nb.runtimes.forking import Lifecycle, fork, fork_ranks

reports = queue.Queue()
go_reader, go_writer = os.pipe()  # closing it releases all processes that read it

def wait():
    os.close(go_writer)
    os.read(go_reader, 1)

def deaths(count):
    statuses = {{}}
    for _ in range(count):
        died = reports.get(timeout=20)
        assert died.pid not in statuses, "reported twice"
        statuses[died.pid] = died.status
    return statuses

def in_background(*args, **options):
    thread = threading.Thread(target=fork, args=args, kwargs=options)
    thread.start()
    return thread

{work}
print("fine", flush=True)
"""


def in_a_process(work):
    """Run lines in a separate interpreter, so that the forking process has one thread."""
    script = SCRIPT.format(work=textwrap.dedent(work))
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout.endswith("fine\n"), done.stdout + done.stderr


def test_each_death_is_reported_with_its_status_or_signal():
    in_a_process(
        """
        hows = [3, 0, -signal.SIGKILL, -signal.SIGSEGV]
        def end(number):
            how = hows[number]
            if how < 0:
                os.kill(os.getpid(), -how)
            os._exit(how)
        fork(4, end, reports.put)
        assert sorted(deaths(4).values()) == sorted(hows)
        assert reports.empty()
        """
    )


def test_death_is_reported_while_others_live():
    in_a_process(
        """
        def end(number):
            if number == 1:
                os.kill(os.getpid(), signal.SIGTERM)
            wait()
        forking = in_background(2, end, reports.put)
        assert list(deaths(1).values()) == [-signal.SIGTERM]
        assert forking.is_alive() and reports.empty()
        os.close(go_writer)
        assert list(deaths(1).values()) == [0]
        forking.join(20)
        """
    )


def test_death_before_all_have_started_is_reported():
    in_a_process(
        """
        fork(20, lambda number: os._exit(number), reports.put)
        assert sorted(deaths(20).values()) == list(range(20))
        """
    )


def test_processes_run_once_all_have_been_forked():
    in_a_process(
        """
        from xla_nb.runtimes import forking
        class Slow(forking._RankProcess):
            def start(self):
                time.sleep(0.2)
                os.write(marks_writer, b"s")
                super().start()
        forking._RankProcess = Slow
        marks, marks_writer = os.pipe()
        fork(3, lambda number: os.write(marks_writer, b"r"), reports.put)
        assert os.read(marks, 10) == b"sssrrr"
        """
    )


def test_started_processes_are_killed_if_the_next_one_cannot_be_started():
    in_a_process(
        """
        opened, pids = [], []
        open_pidfd = os.pidfd_open
        def full(pid):
            pids.append(pid)
            if len(pids) == 2:
                raise OSError("Too many open files")
            return open_pidfd(pid)
        os.pidfd_open = full
        try:
            fork(3, lambda number: time.sleep(60), reports.put)
        except OSError as problem:
            assert "Too many" in str(problem)
        assert len(pids) == 2
        for pid in pids:
            try:
                os.kill(pid, 0)
                raise AssertionError("it lives")
            except ProcessLookupError:
                pass
        """
    )


STAY = """
        said_reader, said_writer = os.pipe()
        def said(seconds):
            ready, _, _ = select.select([said_reader], [], [], seconds)
            return sorted(os.read(said_reader, 100).decode()) if ready else []
        stay_reader, stay_writer = os.pipe()
        def linger():
            os.close(stay_writer)
            os.read(stay_reader, 1)
            os._exit(0)
        def run(number):
            os.close(go_writer)
            if number == 0:
                {first}
            else:
                os.write(said_writer, b"b")
                os.read(go_reader, 1)
"""


@pytest.mark.parametrize(
    ("first", "status"),
    [
        ("os.write(said_writer, b'a')", 0),
        ("os.write(said_writer, b'a'), os.kill(os.getpid(), signal.SIGKILL)", -9),
        ("os.fork() or linger(), os.write(said_writer, b'a')", 0),
    ],
)
def test_process_stays_until_all_have_run_or_died(first, status):
    in_a_process(
        STAY.format(first=first)
        + f"""
        forking = in_background(2, run, reports.put, stay=True)
        heard = []
        while len(heard) < 2:
            heard += said(20)
        time.sleep(0.2)
        assert reports.empty() == {status == 0}
        os.close(go_writer)
        assert sorted(deaths(2).values()) == [{status}, 0]
        """
    )


def test_process_leaves_at_once_if_it_is_not_to_stay():
    in_a_process(
        """
        def run(number):
            if number:
                wait()
        forking = in_background(2, run, reports.put)
        assert list(deaths(1).values()) == [0]
        assert forking.is_alive()
        os.close(go_writer)
        assert list(deaths(1).values()) == [0]
        """
    )


def test_process_runs_its_own_exit_handlers_but_not_inherited_ones():
    in_a_process(
        """
        import atexit, weakref
        from xla_nb.runtimes.forking import forget_exit_handlers

        class Thing: pass
        def say(text): os.write(said_writer, text.encode())
        said_reader, said_writer = os.pipe()
        inherited, made = Thing(), []
        atexit.register(say, "of an import ")
        weakref.finalize(inherited, say, "inherited ")
        forget_exit_handlers()
        atexit.register(say, "of the program.")

        def end(number):
            made.append(Thing())
            weakref.finalize(made[0], say, "finalized ")
            threading._register_atexit(say, "not called ")
            threading._register_atexit(lambda: 1 / 0)
            threading._register_atexit(say, "for threads ")
        fork(1, end, reports.put)
        assert list(deaths(1).values()) == [0]
        said = os.read(said_reader, 1000).decode()
        assert said == "for threads finalized of the program.", said
        """
    )


# ---------------------------------------------------------------- ranks

FORK = """
        reader, writer = os.pipe()
        def write(text):
            os.write(writer, text.encode() + b"\\n")
        def lines():
            os.close(writer)
            with open(reader) as pipe:
                return sorted(pipe.read().splitlines())
"""


@pytest.mark.parametrize("first", [0, 6])
def test_ranks_are_numbered_from_the_first_rank_of_the_host(first):
    in_a_process(
        FORK
        + f"""
        def enter(local_rank, processes):
            write(f"process {{local_rank}} of {{processes}}")
        def main(rank):
            write(f"rank {{rank}}")
        fork_ranks(2, Lifecycle(enter, main, reports.put), {first})
        ranks = ["rank {first}", "rank {first + 1}"]
        assert lines() == ["process 0 of 2", "process 1 of 2", *ranks]
        assert list(deaths(2).values()) == [0, 0]
        """
    )


def test_process_that_fails_to_enter_does_not_block_the_ranks():
    in_a_process(
        FORK
        + """
        def enter(local_rank, processes):
            if local_rank == 0:
                raise RuntimeError("no device")
        def main(rank):
            write(f"rank {rank}")
        fork_ranks(2, Lifecycle(enter, main, reports.put), 4)
        assert lines() == ["rank 5"]
        assert sorted(deaths(2).values()) == [0, 1]
        """
    )
