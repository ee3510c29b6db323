"""What ranks put into a queue of the notebook: it arrives whole, also when they have ended."""

import multiprocessing
import signal

import pytest

from tests.support.returned import arrived

FORK, SPAWN = (multiprocessing.get_context(method) for method in ("fork", "spawn"))
PATIENCE = 60
MORE_THAN_A_PIPE_HOLDS = 300_000  # bytes


@pytest.fixture
def process():
    """Runs a function in a process of its own, as ranks are."""
    started = []

    def run(function, *args):
        started.append(FORK.Process(target=function, args=args))
        started[-1].start()
        return started[-1]

    yield run
    for one in started:
        one.kill()
        one.join()
        one.close()


@pytest.mark.parametrize("kind", ["Queue", "JoinableQueue"])
def test_a_process_ends_though_nobody_has_read_what_it_put(process, kind):
    queue = getattr(SPAWN, kind)()
    theirs = arrived(queue=queue)["queue"]

    def work(number):
        for _ in range(3):
            theirs.put(bytes([number]) * MORE_THAN_A_PIPE_HOLDS)

    writers = [process(work, number) for number in range(2)]
    for writer in writers:
        writer.join(PATIENCE)
        assert writer.exitcode == 0
    got = [queue.get(timeout=PATIENCE) for _ in range(6)]
    assert sorted(map(len, got)) == [MORE_THAN_A_PIPE_HOLDS] * 6
    assert sorted(one[0] for one in got) == [0, 0, 0, 1, 1, 1]
    assert all(len(set(one)) == 1 for one in got)
    queue.close()
    theirs.close()


def test_what_a_pipe_holds_is_there_when_the_process_has_ended(process):
    queue = SPAWN.Queue()
    theirs = arrived(queue=queue)["queue"]

    def work():
        for number in range(100):
            theirs.put(number)

    for _ in range(5):
        process(work).join(PATIENCE)
        got = []
        while not queue.empty():
            got.append(queue.get())
        assert got == list(range(100))
    queue.close()
    theirs.close()


def test_a_process_that_is_killed_leaves_neither_half_a_message_nor_a_lock(process):
    queue = SPAWN.Queue()
    theirs = arrived(queue=queue)["queue"]

    def work():
        theirs.put(b"first")
        theirs.put(bytes(50 * MORE_THAN_A_PIPE_HOLDS))
        signal.pause()

    killed = process(work)
    assert queue.get(timeout=PATIENCE) == b"first"  # the large one is on its way, or about to be
    killed.kill()
    killed.join(PATIENCE)
    process(theirs.put, b"after it").join(PATIENCE)
    while queue.get(timeout=PATIENCE) != b"after it":
        pass  # the large one has come through
    queue.close()
    theirs.close()


def test_nothing_goes_on_when_the_queue_is_no_longer_there(process):
    queue = SPAWN.Queue()
    theirs = arrived(queue=queue)["queue"]
    process(theirs.put, bytes(MORE_THAN_A_PIPE_HOLDS)).join(PATIENCE)
    for end in (queue._reader, queue._writer, theirs._reader, theirs._writer):
        end.close()  # the fixture of all tests waits for the relay to end


def test_a_process_that_a_rank_forks_puts_as_the_rank_does(process):
    queue = SPAWN.Queue()
    theirs = arrived(queue=queue)["queue"]

    def work():
        theirs.put("rank")
        forked = FORK.Process(target=theirs.put, args=("forked",))
        forked.start()
        forked.join()

    process(work).join(PATIENCE)
    assert {queue.get(timeout=PATIENCE) for _ in range(2)} == {"rank", "forked"}
    queue.close()
    theirs.close()
