"""Primitives of multiprocessing: the notebook's own on ranks where they have names or can be given
some, else copies."""

import gc
import multiprocessing
import os
import threading
import time
from multiprocessing.managers import SyncManager

import pytest

from xla_nb.linux import die_with_parent
from xla_nb.protocol import pickling, refusals, results, shared
from xla_nb.protocol.live import Live
from xla_nb.protocol.parcel import Parcel, Unopened
from xla_nb.protocol.refusals import Unshippable

FORK, SPAWN = (multiprocessing.get_context(method) for method in ("fork", "spawn"))
LOCKS = ["Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore"]
QUEUES = ["Queue", "JoinableQueue", "SimpleQueue"]
PATIENCE = 60
NOTE = (
    "ranks share one {0} of their own, not the notebook's, which another process or thread is "
    'using: to share that, make it with `multiprocessing.get_context("spawn").{0}`'
)


class Sent:
    """Values in a parcel, and the notes of the launch."""

    def __init__(self, values):
        live = Live({}, {}.get)
        self._packed = pickling.pack(values, live)
        self.notes = live.notes

    def parcel(self):
        fd = self._packed.to_memfd()
        try:
            return Parcel(fd)
        finally:
            os.close(fd)

    def open(self):
        return self.parcel().open()


def through(**values):
    return Sent(values).open()


def close(*queues):
    for queue in queues:
        if hasattr(queue, "close"):
            queue.close()


# ---------------------------------------------------------------- the notebook's own


def test_a_lock_with_a_name_is_the_notebooks():
    lock = SPAWN.Lock()
    got = through(lock=lock)["lock"]
    with lock:
        assert not got.acquire(block=False)
    assert got.acquire(block=False)


@pytest.mark.leaves("threads")  # the queue's feeder, until the process ends
def test_a_queue_with_names_is_the_notebooks_with_what_is_in_it():
    queue = SPAWN.Queue()
    queue.put("from the notebook")
    got = through(queue=queue)["queue"]
    assert got.get(timeout=PATIENCE) == "from the notebook"
    got.put("from a rank")
    assert queue.get(timeout=PATIENCE) == "from a rank"
    for each in (queue, got):
        each.close()
        each.join_thread()


@pytest.mark.leaves("files")  # multiprocessing keeps its heap
@pytest.mark.parametrize("context", [FORK, SPAWN], ids=["fork", "spawn"])
def test_events_and_values_are_the_notebooks(context):
    event, value, array = context.Event(), context.Value("i", 3), context.Array("d", [1, 2])
    raw = context.RawArray("i", 2)
    got = through(event=event, value=value, array=array, raw=raw)
    event.set()
    assert got["event"].is_set()
    with got["value"].get_lock():
        got["value"].value += 1
    got["array"][1], got["raw"][0] = 7, 5
    assert (value.value, array[:], raw[:]) == (4, [1, 7], [5, 0])


def test_the_writing_end_of_a_pipe_is_the_notebooks():
    reader, writer = multiprocessing.Pipe(duplex=False)
    with reader, writer, through(writer=writer)["writer"] as got:
        got.send("hello")
        assert reader.recv() == "hello"


def test_a_connection_in_both_directions_is_refused():
    one, other = multiprocessing.Pipe()
    with one, other, pytest.raises(Unshippable, match="an open connection"):
        Sent({"one": one})


def test_what_the_notebook_has_closed_since_is_not_taken_for_another_file():
    queue = SPAWN.SimpleQueue()
    sent = Sent({"queue": queue})
    queue.close()
    others = os.pipe()  # which may have the same numbers
    with pytest.raises(Unopened, match="`queue`: FileNotFoundError: the notebook has closed it"):
        sent.open()
    for fd in others:
        os.close(fd)


@pytest.mark.parametrize("kind", QUEUES)
def test_a_queue_that_nobody_uses_yet_is_the_notebooks(kind):
    queue = getattr(FORK, kind)()
    got = through(queue=queue)["queue"]
    if kind == "SimpleQueue":
        queue.put("from the notebook")
        assert got.get() == "from the notebook"
    else:
        got.put("from a rank")
        assert queue.get(timeout=PATIENCE) == "from a rank"
        got.close()
        got.join_thread()
    if kind == "JoinableQueue":
        queue.task_done()
        assert got._unfinished_tasks._semlock._is_zero()
    close(queue)


@pytest.mark.leaves("files")
@pytest.mark.parametrize("order", [["value", "lock"], ["lock", "value"]])
def test_a_value_and_the_lock_it_was_made_with_stay_one(order):
    lock = FORK.Lock()
    value = FORK.Value("i", 3, lock=lock)
    both = {"value": value, "lock": lock}
    got = through(**{name: both[name] for name in order})
    with value.get_lock():
        assert not got["lock"].acquire(block=False)
    with got["lock"]:
        assert not value.acquire(block=False)


@pytest.mark.parametrize("kind", ["Lock", "Event"])
def test_on_a_machine_without_it_a_lock_is_a_new_one_and_an_event_is_refused(kind):
    one = getattr(FORK, kind)()
    fd = pickling.pack({"one": one}, Live({}, {}.get)).to_memfd()
    del one
    gc.collect()  # and its name with it
    parcel = Parcel(fd)
    os.close(fd)
    if kind == "Lock":
        assert parcel.open()["one"].acquire(block=False)
    else:
        with pytest.raises(Unopened, match=r"`one`.*runs on another machine"):
            parcel.open()


# ---------------------------------------------------------------- copies


@pytest.fixture
def fork():
    """Starts a process that is forked from this one, and runs `target` or waits."""
    reader, writer = os.pipe()
    processes = []

    def fork(target=os.read):
        processes.append(FORK.Process(target=target, args=(reader, 1)))
        processes[-1].start()

    yield fork
    os.close(writer)  # which the processes have too
    for process in processes:
        process.kill()  # it has inherited handlers of signals, Ray's too
        process.join()
        process.close()
    os.close(reader)


@pytest.mark.leaves("files")
def test_a_value_that_a_forked_process_may_use_is_copied_and_a_note_tells(fork):
    value = FORK.Value("i", 3)
    fork()
    sent = Sent({"value": value})
    assert [note.partition(" of their own")[0] for note in sent.notes] == ["ranks share one Value"]
    assert sent.open()["value"].value == 3


@pytest.fixture
def manager():
    """Starts a manager as `multiprocessing.Manager()` does, of such a class."""
    started = []

    def manager(kind=SyncManager):
        started.append(kind(ctx=FORK))
        started[-1].start()

    yield manager
    for one in started:
        one.shutdown()


@pytest.mark.leaves("files")
def test_a_manager_that_was_started_since_uses_nothing_of_the_notebooks(manager):
    value = FORK.Value("i", 3)
    manager()
    sent = Sent({"value": value})
    assert sent.notes == set()
    with value.get_lock():
        value.value = 4
    assert sent.open()["value"].value == 4


@pytest.mark.leaves("files")
def test_a_manager_with_something_of_the_notebooks_own_may_use_it(manager, monkeypatch):
    value = FORK.Value("i", 3)
    monkeypatch.setattr(SyncManager, "_registry", dict(SyncManager._registry))
    SyncManager.register("value", callable=lambda: value)
    manager()
    assert len(Sent({"value": value}).notes) == 1


@pytest.mark.leaves("files")
def test_a_value_whose_lock_arrives_as_a_new_one_is_copied():
    lock = FORK.Lock()
    kept = lock.acquire
    sent = Sent({"lock": lock, "value": FORK.Value("i", 3, lock=lock)})
    assert kept()
    assert sent.notes == {NOTE.format("Lock"), NOTE.format("Value")}
    assert sent.open()["value"].value == 3


def test_a_semaphore_that_a_thread_waits_for_is_not_replaced():
    event = FORK.Event()
    waiting = threading.Thread(target=event.wait)
    waiting.start()
    while event._cond._sleeping_count._semlock._is_zero():
        time.sleep(0.001)
    assert len(Sent({"event": event}).notes) == 1
    event.set()
    waiting.join(PATIENCE)
    assert not waiting.is_alive()


@pytest.mark.parametrize("kind", [*LOCKS, "Event", *QUEUES])
def test_a_primitive_without_a_name_arrives_as_a_new_one_of_its_kind(kind, fork):
    sent = getattr(FORK, kind)()
    fork()
    got = through(one=sent, same=sent)
    assert type(got["one"]) is type(sent)
    assert got["one"] is got["same"]
    assert got["one"] is not sent
    close(sent, got["one"])


@pytest.mark.leaves("files")  # a barrier's counter lies in a heap that multiprocessing keeps
def test_semaphore_values_barrier_parties_and_queue_sizes_are_kept(fork):
    queue = FORK.Queue(7)
    sent = {"s": FORK.Semaphore(3), "b": FORK.Barrier(5), "q": queue, "e": FORK.Event()}
    fork()
    got = through(**sent)
    assert got["s"].get_value() == 3
    assert got["b"].parties == 5
    assert got["q"]._maxsize == 7
    assert not got["e"].is_set()
    close(queue, got["q"])


def test_a_copied_event_that_is_set_arrives_set(fork):
    event = FORK.Event()
    event.set()
    fork()
    assert through(e=event)["e"].is_set()


@pytest.mark.parametrize("kind", QUEUES)
def test_a_queue_that_would_arrive_empty_is_refused(kind, fork):
    queue = getattr(FORK, kind)()
    fork()
    queue.put(1)
    with pytest.raises(Unshippable, match="a queue with items") as caught:
        Sent({"queue": queue})
    assert 'Make it with `multiprocessing.get_context("spawn")`' in caught.value.advice
    queue.get()
    close(queue)
    if hasattr(queue, "join_thread"):
        queue.join_thread()


@pytest.mark.parametrize("kind", ["Lock", "RLock"])
def test_a_lock_that_is_held_and_would_arrive_free_is_refused(kind):
    lock = getattr(FORK, kind)()
    with lock, pytest.raises(Unshippable, match="a lock that is held"):
        Sent({"lock": lock})


@pytest.mark.parametrize("kind", [*LOCKS, "Event", *QUEUES])
def test_of_a_copy_that_the_notebook_does_not_share_one_note_tells(kind, fork):
    one = getattr(FORK, kind)()
    fork()
    assert Sent({"one": one, "same": one}).notes == {NOTE.format(kind)}
    close(one)


def test_of_what_is_shared_no_note_tells(fork):
    sent = {"event": SPAWN.Event(), "lock": SPAWN.Lock()}
    fork()
    assert Sent(sent).notes == set()


@pytest.mark.leaves("files")
@pytest.mark.parametrize("kind", [*LOCKS, "Event", *QUEUES, "Value"])
def test_what_was_made_after_a_process_was_forked_is_the_notebooks(kind, fork):
    fork()
    one = FORK.Value("i", 3) if kind == "Value" else getattr(FORK, kind)()
    assert Sent({"one": one}).notes == set()
    close(one)


def test_beside_it_what_was_made_before_is_copied(fork):
    before = FORK.Event()
    fork()
    after = FORK.Event()
    sent = Sent({"before": before, "after": after})
    assert sent.notes == {NOTE.format("Event")}
    got = sent.open()
    after.set()
    before.set()
    assert got["after"].is_set()
    assert not got["before"].is_set()


def test_what_only_a_process_may_use_that_a_forked_one_has_forked_is_copied(fork):
    event = FORK.Event()
    reader, writer = os.pipe()

    def fork_and_forget(*wait):
        if os.fork() == 0:
            die_with_parent()
            os.read(*wait)
            os._exit(0)
        for part in (*shared.semaphores(event), event._cond):
            vars(part).clear()
        gc.collect()
        os.write(writer, b"!")
        os.read(*wait)

    fork(fork_and_forget)
    os.read(reader, 1)
    assert Sent({"event": event}).notes == {NOTE.format("Event")}
    os.close(reader)
    os.close(writer)


def _pickled_in_a_forked_process(event, writer):
    sent = Sent({"event": event, "own": FORK.Event()})
    os.write(writer, f"{len(sent.notes)} {sent.open()['event'].is_set()}".encode())


def test_what_the_process_that_forked_this_one_may_use_is_copied():
    event = FORK.Event()
    reader, writer = os.pipe()
    process = FORK.Process(target=_pickled_in_a_forked_process, args=(event, writer))
    process.start()
    os.close(writer)
    with os.fdopen(reader, "rb") as told:
        assert told.read() == b"1 False"
    process.join(PATIENCE)
    process.close()


def test_where_the_memory_of_a_process_cannot_be_read_a_primitive_is_copied(fork, monkeypatch):
    def unreadable(pid):
        raise PermissionError(pid)

    fork()
    monkeypatch.setattr(shared, "shared_mappings", unreadable)
    assert Sent({"event": FORK.Event()}).notes == {NOTE.format("Event")}


# ---------------------------------------------------------------- the way back


@pytest.mark.parametrize("kind", QUEUES)
def test_the_items_of_a_queue_that_a_rank_returns_are_asked_for(kind):
    queue = getattr(SPAWN, kind)()
    queue.put(1)
    while queue.empty():
        time.sleep(0.001)
    with pytest.raises(Unshippable, match="a queue with items") as caught:
        results.pack_home(queue, ())
    assert refusals.advice_on_result(caught.value) == "Return its items as a list"
    queue.get()
    close(queue)
    if hasattr(queue, "join_thread"):
        queue.join_thread()
