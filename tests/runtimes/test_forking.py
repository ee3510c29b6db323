"""Rank processes as their job sees them: one rank per process, and every death is reported."""

import os
import select
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from xla_nb.runtimes import forking
from xla_nb.runtimes.forking import Latch, Lifecycle


@pytest.fixture
def fork():
    """fork(work) runs a function in a child process; all children are killed at the end."""
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


def test_started_processes_are_killed_if_the_next_one_cannot_be_started(monkeypatch):
    latch = Latch()
    ranks = forking.RankContext(2, Lifecycle(None, None, latch, print))
    first, second = (ranks.Process(target=time.sleep, args=(60,)) for _ in range(2))
    first.start()
    with monkeypatch.context() as full:
        full.setattr(os, "pidfd_open", lambda pid: os.open("/", os.O_WRONLY))  # raises OSError
        with pytest.raises(OSError, match="directory"):
            second.start()
    for process in (first, second):
        process.join(10)
        assert process.exitcode == -signal.SIGKILL
    latch.arrive()
    latch.wait()
    os.close(latch._reader)


class Gate:
    """A gate that one process opens for good and others wait for."""

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
    gates = []

    def gate():
        gates.append(Gate())
        return gates[-1]

    yield gate
    for each in gates:
        each.close()


@pytest.fixture
def latch():
    latch = Latch()
    yield latch
    os.close(latch._reader)


def waits(latch, opened):
    """The work of a process that arrives and waits for the others."""

    def work():
        latch.arrive()
        latch.wait()
        opened.open()

    return work


def arrives(latch, go, here):
    """The work of a process that arrives when the gate `go` opens, then stays alive."""

    def work():
        here.open()
        go.is_open(None)
        latch.arrive()
        signal.pause()

    return work


def test_latch_opens_when_every_process_has_arrived(fork, gate, latch):
    opened, first, second, here = gate(), gate(), gate(), gate()
    for go in (first, second):
        fork(arrives(latch, go, here))
    fork(waits(latch, opened))
    latch.arrive()
    first.open()
    assert not opened.is_open(within=0.1)
    second.open()
    assert opened.is_open(within=10)


def test_latch_waits_for_the_process_that_made_it(fork, gate, latch):
    opened = gate()
    fork(waits(latch, opened))
    assert not opened.is_open(within=0.1)
    latch.arrive()
    assert opened.is_open(within=10)


def test_latch_does_not_wait_for_a_dead_process(fork, gate, latch):
    opened, never, here = gate(), gate(), gate()
    child = fork(arrives(latch, never, here))
    fork(waits(latch, opened))
    latch.arrive()
    assert here.is_open(within=10)
    assert not opened.is_open(within=0.1)
    os.kill(child, signal.SIGKILL)
    assert opened.is_open(within=10)


def test_open_latch_never_blocks(latch):
    latch.arrive()
    latch.wait()
    latch.wait()


# ---------------------------------------------------------------- context

SCRIPT = """
import concurrent.futures, os, queue, signal, threading
from xla_nb.runtimes.forking import Latch, Lifecycle, RankContext

reports, latch = queue.Queue(), Latch()
context = RankContext({count}, Lifecycle(None, None, latch, reports.put))
go_reader, go_writer = os.pipe()  # closing it releases all processes that read it

def arrive():
    os.close(go_writer)
    latch.arrive()

def deaths(count):
    statuses = {{}}
    for _ in range(count):
        died = reports.get(timeout=20)
        assert died.pid not in statuses, "reported twice"
        statuses[died.pid] = died.status
    return statuses

def pool():
    return concurrent.futures.ProcessPoolExecutor({count}, mp_context=context)

def watched():
    return [thread for thread in threading.enumerate() if thread.name == "xla_nb-watch"]

{work}
print("fine", flush=True)
"""


def in_a_process(work, count):
    """Run lines in a separate interpreter, so that the forking process has one thread."""
    script = SCRIPT.format(work=textwrap.dedent(work), count=count)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.stdout.endswith("fine\n"), done.stdout + done.stderr


def test_each_death_is_reported_with_its_status_or_signal():
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
        assert reports.empty()
        """,
        count=4,
    )


def test_death_is_reported_while_others_live():
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


def test_death_of_a_reaped_process_is_reported():
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


def test_status_about_to_be_stored_by_another_thread_is_waited_for():
    """The pool's thread reaps a process in one step and stores its status in the next."""

    class Reaped:
        pid = 12
        statuses = iter([None, None, -9, -9])
        exitcode = property(lambda self: next(self.statuses))

    told = []
    forking.RankContext(1, Lifecycle(None, None, None, told.append))._died(Reaped())
    assert [death.status for death in told] == [-9]


def test_finish_waits_until_every_death_is_reported():
    in_a_process(
        """
        def end():
            arrive()
            os.read(go_reader, 1)
        process = context.Process(target=end)
        context.finish()  # nothing has started
        process.start()
        os.close(go_writer)
        context.finish()
        assert reports.get_nowait().status == 0
        """,
        count=1,
    )


def test_job_arrives_when_the_last_process_has_started():
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


def test_terminate_does_nothing():
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


def test_queue_item_that_ends_a_pools_process_is_delivered():
    in_a_process(
        """
        def end(calls):
            arrive()
            assert calls.get() is None
        process = context.Process(target=end, args=(context.Queue(1),))
        process.start()
        process.terminate()
        assert deaths(1) == {process.pid: 0}
        """,
        count=1,
    )


def test_processes_of_a_broken_pool_finish_their_work():
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
            pass  # raised at once; the other process is still running
        assert set(deaths(1).values()) == {-signal.SIGKILL}
        assert reports.empty()
        os.close(go_writer)
        assert set(deaths(1).values()) <= {0, 1}  # 1: its pool is gone when it answers
        workers.shutdown()
        """,
        count=2,
    )


def test_each_task_of_a_pool_has_a_process_whose_end_is_reported():
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

        def end():
            arrive()
            made.append(Thing())
            weakref.finalize(made[0], say, "finalized ")
            threading._register_atexit(say, "not called ")
            threading._register_atexit(lambda: 1 / 0)
            threading._register_atexit(say, "for threads ")
        process = context.Process(target=end)
        process.start()
        assert deaths(1) == {process.pid: 0}
        said = os.read(said_reader, 1000).decode()
        assert said == "for threads finalized of the program.", said
        """,
        count=1,
    )


# ---------------------------------------------------------------- without a pool

FORK = """
        from xla_nb.runtimes.forking import Lifecycle, fork_ranks
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
            latch.arrive()
            write(f"process {{local_rank}} of {{processes}}")
        def main(rank):
            write(f"rank {{rank}}")
        fork_ranks(2, Lifecycle(enter, main, latch, reports.put), {first})
        ranks = ["rank {first}", "rank {first + 1}"]
        assert lines() == ["process 0 of 2", "process 1 of 2", *ranks]
        assert list(deaths(2).values()) == [0, 0]
        """,
        count=2,
    )


def test_process_that_fails_to_enter_does_not_block_the_ranks():
    in_a_process(
        FORK
        + """
        def enter(local_rank, processes):
            latch.arrive()
            if local_rank == 0:
                raise RuntimeError("no device")
        def main(rank):
            write(f"rank {rank}")
        fork_ranks(2, Lifecycle(enter, main, latch, reports.put), 4)
        assert lines() == ["rank 5"]
        assert sorted(deaths(2).values()) == [0, 1]
        """,
        count=2,
    )
