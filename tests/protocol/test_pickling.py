"""Values sent and received through a parcel in one process, or refused."""

import collections
import multiprocessing
import os
import socket
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from xla_nb.protocol import pickling


@pytest.fixture
def through():
    """Send groups and read them back."""
    fds = []

    def through(*groups, by_name=()):
        fd = pickling.send(groups, by_name)
        fds.append(fd)
        parcel = pickling.Parcel(fd)
        return [parcel.group(number) for number in range(len(groups))]

    yield through
    for fd in fds:
        os.close(fd)


def test_plain_values_come_back_equal(through):
    value = {"a": [1, 2.5, "x", None, b"y"], "b": {"c": (1,)}, "s": {1, 2}}
    assert through(value) == [value]


def test_groups_are_separate(through):
    assert through({"a": 1}, {"b": 2}, {}) == [{"a": 1}, {"b": 2}, {}]


def test_closures_can_be_called(through):
    step = 3
    (got,) = through({"add": lambda x: x + step})
    assert got["add"](4) == 7


def test_a_large_array_arrives_writable(through):
    array = np.arange(100_000.0)
    (got,) = through({"x": array})
    np.testing.assert_array_equal(got["x"], array)
    got["x"][0] = -1
    assert array[0] == 0


def test_memory_shared_by_two_groups_is_sent_once(through):
    array = np.zeros(1_000_000)
    fd = pickling.send([{"a": array}, {"b": array}], ())
    try:
        assert os.fstat(fd).st_size < 1.1 * array.nbytes
    finally:
        os.close(fd)


def test_a_fortran_ordered_and_a_strided_array_come_back_equal(through):
    base = np.arange(12.0).reshape(3, 4)
    (got,) = through({"f": np.asfortranarray(base), "s": base[::2, ::2], "e": np.zeros((0, 3))})
    np.testing.assert_array_equal(got["f"], base)
    np.testing.assert_array_equal(got["s"], base[::2, ::2])
    assert got["e"].shape == (0, 3)


@pytest.mark.parametrize(
    "kind",
    [
        "Lock",
        "RLock",
        "Event",
        "Condition",
        "Semaphore",
        "BoundedSemaphore",
        "Queue",
        "JoinableQueue",
        "SimpleQueue",
    ],
)
def test_a_multiprocessing_primitive_arrives_as_a_new_one_of_its_kind(through, kind):
    sent = getattr(multiprocessing, kind)()
    (got,) = through({"one": sent, "same": sent})
    assert type(got["one"]) is type(sent)
    assert got["one"] is got["same"]
    assert got["one"] is not sent
    for queue in (sent, got["one"]):
        if hasattr(queue, "close"):
            queue.close()


def test_a_lock_held_in_the_notebook_arrives_free(through):
    lock = multiprocessing.Lock()
    with lock:
        (got,) = through({"lock": lock})
    assert got["lock"].acquire(block=False)


@pytest.mark.leaves("files")  # a barrier's counter lies in a heap that multiprocessing keeps
def test_semaphore_values_barrier_parties_and_queue_sizes_are_kept(through):
    queue = multiprocessing.Queue(7)
    (got,) = through(
        {
            "s": multiprocessing.Semaphore(3),
            "b": multiprocessing.Barrier(5),
            "q": queue,
            "e": multiprocessing.Event(),
        }
    )
    assert got["s"].get_value() == 3
    assert got["b"].parties == 5
    assert got["q"]._maxsize == 7
    got["q"].close()
    queue.close()
    assert not got["e"].is_set()


def test_an_event_that_is_set_arrives_set(through):
    event = multiprocessing.Event()
    event.set()
    assert through({"e": event})[0]["e"].is_set()


def test_stdout_arrives_as_the_receivers_stdout(through):
    assert through({"out": sys.stdout})[0]["out"] is sys.stdout


def refusal(name, value):
    with pytest.raises(Exception) as caught:
        os.close(pickling.send([{"fine": 1, name: value}], ()))
    return str(pickling.explain([{"fine": 1, name: value}], (), {name: "Cell In[7]"}, caught.value))


def test_an_open_file_is_refused_with_name_cell_and_advice():
    with Path(__file__).open() as file:
        message = refusal("notes", {"deep": [file]})
    assert message == (
        "Cannot send `notes` (builtins.dict, defined in Cell In[7]) to ranks: it is or contains "
        "an open file. Open it inside the function."
    )


def test_an_open_socket_is_refused():
    with socket.socket() as sock:
        message = refusal("connection", sock)
    assert message == (
        "Cannot send `connection` (socket.socket, defined in Cell In[7]) to ranks: it is or "
        "contains an open socket. Connect inside the function."
    )


@pytest.mark.parametrize(
    ("make", "advice"),
    [
        (lambda: (x for x in "ab"), "Send a list of its items"),
        (threading.Lock, "Use the `lock` parameter"),
        (lambda: collections.deque([(x for x in "ab")]), "Send a list of its items"),
    ],
)
def test_an_unpicklable_value_is_refused_with_advice(make, advice):
    assert advice in refusal("thing", make())


def test_a_database_connection_is_refused_with_advice():
    with sqlite3.connect(":memory:") as connection:
        message = refusal("db", connection)
    connection.close()
    assert message.endswith("object. Connect inside the function.")


TORCH = r"""
import os, sys, torch
from xla_nb.protocol import pickling

def through(**values):
    fd = pickling.send([values], ())
    return pickling.Parcel(fd).group(0), os.fstat(fd).st_size

base = torch.arange(10.0)
got, _ = through(base=base, view=base[2:5], empty=torch.zeros(0), half=torch.ones(3).bfloat16())
got["base"][2] = 99
print("view sees a write to its base:", got["view"][0].item())
print("empty:", tuple(got["empty"].shape))
print("half:", got["half"].dtype)

model = torch.nn.Linear(1000, 1000)
tied = torch.nn.Sequential(model, model)
got, size = through(tied=tied)
weight = got["tied"][0].weight
print("sent once:", size < 1.1 * 4 * 1001 * 1000)
print("still tied:", got["tied"][0] is got["tied"][1])
print("type:", type(weight).__name__)
print("equal:", torch.equal(weight, model.weight))
with torch.no_grad():
    weight.zero_()
print("a copy:", bool(model.weight.abs().sum() > 0))
"""


def test_tensors_keep_shared_memory_types_and_tied_modules():
    process = subprocess.run(
        [sys.executable, "-c", TORCH], capture_output=True, text=True, check=False, timeout=120
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout.splitlines() == [
        "view sees a write to its base: 99.0",
        "empty: (0,)",
        "half: torch.bfloat16",
        "sent once: True",
        "still tied: True",
        "type: Parameter",
        "equal: True",
        "a copy: True",
    ]
