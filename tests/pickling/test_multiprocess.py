"""multiprocessing primitives: ranks share the notebook's. Of those created before xla_nb is loaded,
locks are replaced by new ones, and the others are refused."""

import contextlib
import gc
import multiprocessing
import os
import sys
import time
from pathlib import Path

import pytest

from tests.support.returned import arrived, opened
from xla_nb.pickling import multiprocess, pickler, results
from xla_nb.pickling.functions_and_classes import Live
from xla_nb.pickling.parcel import Parcel, Unopened
from xla_nb.pickling.refusals import Unshippable

FORK, SPAWN = (multiprocessing.get_context(method) for method in ("fork", "spawn"))
PATIENCE = 60


@pytest.fixture(autouse=True)
def _named():
    """As after `%load_ext xla_nb`."""
    multiprocess.named().turn_on()
    yield
    multiprocess.named().turn_off()


def older(kind, *arguments):
    """A primitive created before `%load_ext xla_nb`."""
    multiprocess.named().turn_off()
    made = getattr(FORK, kind)(*arguments)
    multiprocess.named().turn_on()
    return made


@pytest.fixture
def process():
    """Runs a function in a separate process, like a rank; `end` waits for it to exit."""
    started = []

    def run(function, *args, end=False):
        started.append(FORK.Process(target=function, args=args))
        started[-1].start()
        if end:
            started[-1].join(PATIENCE)
        return started[-1]

    yield run
    for one in started:
        one.kill()
        one.join()
        one.close()


@pytest.fixture
def shared():
    """Creates notebook queues, each with the queue that a rank gets for it."""
    made = []

    def shared(kind="Queue"):
        queue = getattr(SPAWN, kind)()
        made.append((queue, arrived(queue=queue)["queue"]))
        return made[-1]

    yield shared
    while made:
        close(*made.pop())


def pack(one):
    return pickler.pack({"one": one}, Live())


def close(*queues):
    for queue in queues:
        if hasattr(queue, "close"):
            queue.close()


@pytest.mark.leaves("files")  # multiprocessing keeps its heap
def test_arrays_are_shared_with_the_notebook():
    array, raw = FORK.Array("d", [1, 2]), SPAWN.RawArray("i", 2)
    got = arrived(array=array, raw=raw)
    got["array"][1], got["raw"][0] = 7, 5
    assert (array[:], raw[:]) == ([1, 7], [5, 0])


def test_pipe_writer_is_shared_but_duplex_connection_is_refused():
    reader, writer = multiprocessing.Pipe(duplex=False)
    with reader, writer, arrived(writer=writer)["writer"] as got:
        got.send("hello")
        assert reader.recv() == "hello"
    one, other = multiprocessing.Pipe()
    with one, other, pytest.raises(Unshippable, match="an open connection"):
        pack(one)


def test_closed_queue_is_not_mistaken_for_another_file():
    queue = SPAWN.SimpleQueue()
    packed = pack(queue)
    queue.close()
    others = os.pipe()  # may reuse its file numbers
    expected = "`one` on ranks: FileNotFoundError: the notebook closed it"
    with pytest.raises(Unopened, match=expected):
        opened(packed)
    for fd in others:
        os.close(fd)


def test_unused_queues_are_shared_with_the_notebook():
    for kind in "Queue", "JoinableQueue":
        queue = getattr(FORK, kind)()
        got = arrived(queue=queue)["queue"]
        got.put("from a rank")
        assert queue.get(timeout=PATIENCE) == "from a rank"
        close(queue, got)
        got.join_thread()
    queue.task_done()
    assert got._unfinished_tasks._semlock._is_zero()
    simple = FORK.SimpleQueue()
    simple.put("from the notebook")
    assert arrived(queue=simple)["queue"].get() == "from the notebook"
    close(simple)


@pytest.mark.leaves("files")
@pytest.mark.parametrize("order", [["value", "lock"], ["lock", "value"]])
def test_value_keeps_sharing_its_lock(order):
    lock = FORK.Lock()
    value = FORK.Value("i", 3, lock=lock)
    both = {"value": value, "lock": lock}
    got = arrived(**{name: both[name] for name in order})
    with value.get_lock():
        assert not got["lock"].acquire(block=False)
    with got["lock"]:
        assert not value.acquire(block=False)


def test_locks_and_events_are_refused_on_another_machine():
    fds = [pack(one).to_memfd() for one in (FORK.Lock(), FORK.Event())]
    gc.collect()  # also removes their names
    for fd in fds:
        parcel = Parcel(fd)
        os.close(fd)
        with pytest.raises(Unopened, match=r"`one`.*another machine, where .* the `lock` param"):
            parcel.open()


@pytest.mark.parametrize("kind", ["Lock", "RLock"])
def test_unnamed_lock_is_replaced_by_a_new_one_with_one_note(kind):
    lock = older(kind)
    live = Live()
    packed = pickler.pack({"one": lock, "same": lock}, live)
    assert live.notes == {
        f"ranks share a new {kind}, not the notebook's: to share that, re-create it "
        "after `%load_ext xla_nb` (in a script, `xla_nb.install()`), or with "
        f'`multiprocessing.get_context("spawn").{kind}`'
    }
    got = opened(packed)
    assert type(got["one"]) is type(lock)
    assert got["one"] is got["same"]
    assert got["one"] is not lock
    assert got["one"].acquire(block=False)
    assert lock.acquire(block=False)


def test_unnamed_semaphore_and_held_lock_are_refused():
    for kind in "Semaphore", "BoundedSemaphore":
        with pytest.raises(Unshippable, match=f"{kind} that only forked processes can use"):
            pack(older(kind, 2))
    for lock in older("Lock"), older("RLock"):
        with lock, pytest.raises(Unshippable, match="a lock that is held"):
            pack(lock)


@pytest.mark.leaves("files")
@pytest.mark.parametrize(
    ("kind", "arguments"),
    [
        *((kind, ()) for kind in ("Condition", "Event", "Queue", "JoinableQueue", "SimpleQueue")),
        *(("Barrier", (2,)), ("Value", ("i", 3)), ("Array", ("c", 3))),
    ],
)
def test_older_primitives_other_than_locks_are_refused(kind, arguments):
    one = older(kind, *arguments)
    with pytest.raises(Unshippable, match=f"a multiprocessing {kind} that only forked") as caught:
        pack(one)
    assert caught.value.advice == (
        "Re-create it after `%load_ext xla_nb` (in a script, `xla_nb.install()`), or with "
        f'`multiprocessing.get_context("spawn").{kind}`'
    )
    close(one)
    if kind == "Value":
        with pytest.raises(Unshippable, match="a multiprocessing Value that only forked"):
            pack(FORK.Value("i", 3, lock=older("Lock")))


def file_of(name):
    return Path("/dev/shm", f"sem.{name[1:]}")


def test_semaphore_name_is_removed_with_its_owner(process):
    lock = FORK.Lock()
    assert (file := file_of(lock._semlock.name)).exists()
    del lock
    assert not file.exists()
    reader, writer = FORK.Pipe(duplex=False)

    def work():
        lock = FORK.Lock()
        writer.send(lock._semlock.name)

    with reader, writer:
        process(work, end=True)
        assert not file_of(reader.recv()).exists()


@pytest.mark.parametrize("end", [lambda: None, sys.exit, lambda: os.kill(os.getpid(), 9)])
def test_forked_process_shares_semaphores_and_does_not_remove_their_names(process, end):
    lock = FORK.Lock()

    def work():
        lock.acquire()
        end()

    process(work, end=True)
    assert not arrived(lock=lock)["lock"].acquire(block=False)
    lock.release()
    assert arrived(lock=lock)["lock"].acquire(block=False)


@pytest.mark.leaves("files")
def test_returning_primitives_from_a_rank_is_refused():
    with contextlib.closing(FORK.SimpleQueue()) as queue:
        for one in FORK.Lock(), FORK.Event(), queue, FORK.Value("i", 3):
            with pytest.raises(RuntimeError, match="between processes through inheritance"):
                results.pack_home(one)


def test_process_exits_before_its_queue_items_are_read(process, shared):
    queue, theirs = shared("JoinableQueue")

    def work(number):
        theirs.put(bytes([number]) * 400_000)  # more than a pipe holds by default
        multiprocess.wait_for_readers()

    for writer in [process(work, number) for number in range(2)]:
        writer.join(PATIENCE)
        assert writer.exitcode == 0
    got = sorted(queue.get(timeout=PATIENCE) for _ in range(2))
    assert got == [bytes([number]) * 400_000 for number in range(2)]


def test_queue_items_outlive_the_process_that_put_them(process, shared):
    queue, theirs = shared()

    def work():
        for number in range(100):
            theirs.put(number)

    for _ in range(5):
        process(work, end=True)
        got = []
        while not queue.empty():
            got.append(queue.get())
        assert got == list(range(100))


def put_and_wait(queue, errors, seconds):
    """Put a large item, then report the error raised while waiting for readers."""
    queue.put(bytes(3_000_000))
    try:
        multiprocess.wait_for_readers(seconds)
    except multiprocess.UnreadError as error:
        errors.put(str(error))
    else:
        errors.put("")


@pytest.fixture
def errors():
    with contextlib.closing(FORK.SimpleQueue()) as errors:
        yield errors


def test_unread_items_beyond_pipe_capacity_raise_an_error(process, shared, errors):
    putting = process(put_and_wait, shared()[1], errors, 0.2)
    assert errors.get() == (
        "This rank put more than 1024 KiB into a notebook queue, and nothing has been read for "
        "0.2 s. Re-create the queue and read it in a notebook thread while the ranks run, or "
        "return the value."
    )
    putting.join(PATIENCE)
    assert putting.exitcode == 0


def test_process_waits_for_slow_readers_and_large_items(process, shared, errors):
    queue, theirs = shared()
    writers = [process(put_and_wait, theirs, errors, 2) for _ in range(3)]
    for _ in writers:
        time.sleep(1)
        assert len(queue.get(timeout=PATIENCE)) == 3_000_000
    process(put_and_wait, theirs, errors, 1)
    left = 2_500_000  # the rest fits in the pipe
    while left > 0:
        left -= len(os.read(queue._reader.fileno(), 400_000))
        time.sleep(0.4)
    assert [errors.get() for _ in range(4)] == [""] * 4


@pytest.mark.parametrize("way", ["close", "cancel_join_thread"])
def test_process_waits_for_a_closed_queue_but_not_a_cancelled_one(process, shared, way):
    queue, theirs = shared()

    def work():
        theirs.put(bytes(3_000_000))
        getattr(theirs, way)()
        multiprocess.wait_for_readers()

    writer = process(work)
    if way == "close":
        assert len(queue.get(timeout=PATIENCE)) == 3_000_000
    writer.join(PATIENCE)
    assert writer.exitcode == 0


def test_process_forked_by_a_rank_can_put_into_its_queue(process, shared):
    queue, theirs = shared()

    def work():
        theirs.put("rank")
        forked = FORK.Process(target=theirs.put, args=("forked",))
        forked.start()
        forked.join()

    process(work, end=True)
    assert {queue.get(timeout=PATIENCE) for _ in range(2)} == {"rank", "forked"}
