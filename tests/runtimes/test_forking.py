"""Rank processes as their job sees them: nobody takes another's place, each death is told."""

import os
import select
import signal
import subprocess
import sys
import textwrap

import pytest

from xla_nb.runtimes import forking
from xla_nb.runtimes.forking import Latch


@pytest.fixture
def fork():
    """Fork processes that each run a function; all are ended and waited for."""
    children = []

    def fork(work):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                work()
                status = 0
            finally:
                os._exit(status)
        children.append(child)
        return child

    yield fork
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


class Gate:
    """What one process may pass, once and for all, when another opens it."""

    def __init__(self):
        self._reader, self._writer = os.pipe()

    def open(self):
        os.write(self._writer, b"x")

    def is_open(self, within):
        return bool(select.select([self._reader], [], [], within)[0])

    def close(self):
        os.close(self._reader)
        os.close(self._writer)


@pytest.fixture
def gate():
    made = []

    def gate():
        made.append(Gate())
        return made[-1]

    yield gate
    for each in made:
        each.close()


@pytest.fixture
def latch():
    made = Latch()
    yield made
    os.close(made._reader)


def waits(latch, opened):
    """A process that has arrived and waits for the others."""

    def work():
        latch.arrive()
        latch.wait()
        opened.open()

    return work


def arrives(latch, go, here):
    """A process that arrives when it may, and then lives on."""

    def work():
        here.open()
        go.is_open(None)
        latch.arrive()
        signal.pause()

    return work


def test_a_latch_opens_when_every_process_has_arrived(fork, gate, latch):
    opened, first, second, here = gate(), gate(), gate(), gate()
    for go in (first, second):
        fork(arrives(latch, go, here))
    fork(waits(latch, opened))
    latch.arrive()
    first.open()
    assert not opened.is_open(within=0.1)
    second.open()
    assert opened.is_open(within=10)


def test_a_latch_waits_for_the_process_that_made_it(fork, gate, latch):
    opened = gate()
    fork(waits(latch, opened))
    assert not opened.is_open(within=0.1)
    latch.arrive()
    assert opened.is_open(within=10)


def test_a_process_that_died_keeps_nobody_waiting(fork, gate, latch):
    opened, never, here = gate(), gate(), gate()
    child = fork(arrives(latch, never, here))
    fork(waits(latch, opened))
    latch.arrive()
    assert here.is_open(within=10)
    assert not opened.is_open(within=0.1)
    os.kill(child, signal.SIGKILL)
    assert opened.is_open(within=10)


def test_an_open_latch_lets_everybody_through(latch):
    latch.arrive()
    latch.wait()
    latch.wait()


# ---------------------------------------------------------------- the context

SCRIPT = """
import concurrent.futures, os, queue, signal, threading
from xla_nb.runtimes.forking import Latch, RankContext

told, latch = queue.Queue(), Latch()
context = RankContext({count}, latch, told.put)
go_reader, go_writer = os.pipe()  # what closes it lets all that read it go on

def arrive():
    os.close(go_writer)
    latch.arrive()

def deaths(count):
    found = {{}}
    for _ in range(count):
        died = told.get(timeout=20)
        assert died.pid not in found, "told twice"
        found[died.pid] = died.status
    return found

def pool():
    return concurrent.futures.ProcessPoolExecutor({count}, mp_context=context)

def watched():
    return [thread for thread in threading.enumerate() if thread.name == "xla_nb-watch"]

{work}
print("fine", flush=True)
"""


def in_a_process(work, count):
    """Run lines in an interpreter of their own: what forks there has one thread."""
    script = SCRIPT.format(work=textwrap.dedent(work), count=count)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout.endswith("fine\n"), done.stdout + done.stderr


def test_each_death_is_told_with_its_status_or_signal():
    in_a_process(
        """
        def end(how):
            arrive()
            if how < 0:
                os.kill(os.getpid(), -how)
            os._exit(how)
        statuses = [3, 0, -signal.SIGKILL, -signal.SIGSEGV]
        processes = [context.Process(target=end, args=(status,)) for status in statuses]
        for process in processes:
            process.start()
        pids = [process.pid for process in processes]
        assert deaths(4) == dict(zip(pids, statuses)), pids
        for thread in watched():
            thread.join(20)
        assert told.empty()
        """,
        count=4,
    )


def test_a_death_is_told_while_others_live():
    in_a_process(
        """
        def end(how):
            arrive()
            os.read(go_reader, 1)
        processes = [context.Process(target=end, args=(n,)) for n in range(2)]
        for process in processes:
            process.start()
        os.kill(processes[1].pid, signal.SIGTERM)
        assert deaths(1) == {processes[1].pid: -signal.SIGTERM}
        assert processes[0].is_alive()
        os.close(go_writer)
        assert deaths(1) == {processes[0].pid: 0}
        """,
        count=2,
    )


def test_a_death_is_told_also_when_it_was_waited_for_before():
    in_a_process(
        """
        def end(how):
            arrive()
            os._exit(how)
        first = context.Process(target=end, args=(5,))
        first.start()
        first.join()  # the watch begins with the second
        second = context.Process(target=end, args=(6,))
        second.start()
        assert deaths(2) == {first.pid: 5, second.pid: 6}
        """,
        count=2,
    )


def test_the_status_that_another_thread_is_about_to_note_is_waited_for():
    """The pool's thread reaps a process in one step and notes its status in the next."""

    class Reaped:
        pid = os.getpid()  # no child of this process
        noted = iter([None, None, -9, -9])
        exitcode = property(lambda self: next(self.noted))

    assert forking._status(Reaped()) == -9


def test_the_rest_is_told_before_the_job_goes():
    in_a_process(
        """
        def end():
            arrive()
            os.read(go_reader, 1)
        process = context.Process(target=end)
        context.tell_the_rest()  # nothing has started
        process.start()
        os.close(go_writer)
        context.tell_the_rest()
        assert told.get_nowait().status == 0
        """,
        count=1,
    )


def test_the_job_arrives_when_the_last_process_has_started():
    in_a_process(
        """
        import select
        is_open = lambda: bool(select.select([latch._reader], [], [], 0)[0])
        def end():
            arrive()
            latch.wait()
        processes = [context.Process(target=end) for _ in range(2)]
        processes[0].start()
        assert not watched()
        assert not is_open() and processes[0].is_alive()
        processes[1].start()
        latch.wait()
        assert set(deaths(2).values()) == {0}
        """,
        count=2,
    )


def test_terminate_ends_nothing():
    in_a_process(
        """
        def end():
            arrive()
            os.read(go_reader, 1)
        process = context.Process(target=end)
        process.start()
        process.terminate()
        os.close(go_writer)
        assert deaths(1) == {process.pid: 0}
        """,
        count=1,
    )


def test_when_a_pool_loses_a_process_the_others_finish_their_work():
    in_a_process(
        """
        def work(n):
            arrive()
            latch.wait()
            if n == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            os.read(go_reader, 1)
            os.write(1, b"finished\\n")
        workers = pool()
        futures = [workers.submit(work, n) for n in range(2)]
        try:
            futures[1].result(20)
        except concurrent.futures.process.BrokenProcessPool:
            pass  # it is told so at once; the process goes on
        assert set(deaths(1).values()) == {-signal.SIGKILL}
        assert told.empty()
        os.close(go_writer)
        assert set(deaths(1).values()) <= {0, 1}  # 1: its pool is gone when it wants to answer
        workers.shutdown()
        """,
        count=2,
    )


def test_in_a_pool_each_task_has_a_process_of_its_own_whose_end_is_told():
    in_a_process(
        """
        def work():
            arrive()
            latch.wait()
            return os.getpid()
        with pool() as workers:
            pids = {future.result(20) for future in [workers.submit(work) for _ in range(3)]}
        assert deaths(3) == dict.fromkeys(pids, 0), pids
        """,
        count=3,
    )


# ---------------------------------------------------------------- without a pool

FORK = """
        from xla_nb.runtimes.forking import Lifecycle, fork_ranks
        reader, writer = os.pipe()
        def say(text):
            os.write(writer, text.encode() + b"\\n")
        def said():
            os.close(writer)
            with open(reader) as pipe:
                return sorted(pipe.read().splitlines())
"""


@pytest.mark.parametrize("first", [0, 6])
def test_ranks_are_numbered_from_the_first_one_of_their_host_on(first):
    in_a_process(
        FORK
        + f"""
        def enter(local_rank, processes):
            latch.arrive()
            say(f"process {{local_rank}} of {{processes}}")
        def main(rank):
            say(f"rank {{rank}}")
        fork_ranks(2, Lifecycle(enter, main, latch, told.put), {first})
        ranks = ["rank {first}", "rank {first + 1}"]
        assert said() == ["process 0 of 2", "process 1 of 2", *ranks]
        assert list(deaths(2).values()) == [0, 0]
        """,
        count=2,
    )


def test_a_process_that_cannot_enter_is_no_rank_and_holds_nobody_up():
    in_a_process(
        FORK
        + """
        def enter(local_rank, processes):
            latch.arrive()
            if local_rank == 0:
                raise RuntimeError("no device")
        def main(rank):
            say(f"rank {rank}")
        fork_ranks(2, Lifecycle(enter, main, latch, told.put), 4)
        assert said() == ["rank 5"]
        assert sorted(deaths(2).values()) == [0, 1]
        """,
        count=2,
    )


# ---------------------------------------------------------------- of oneself
