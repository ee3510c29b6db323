"""Values through a parcel, in one process: what goes in is what comes out, or is refused."""

import collections
import multiprocessing
import os
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
    opened = []

    def through(*groups, by_name=()):
        fd = pickling.send(groups, by_name)
        opened.append(fd)
        parcel = pickling.Parcel(fd)
        return [parcel.group(number) for number in range(len(groups))]

    yield through
    for fd in opened:
        os.close(fd)


def test_plain_values_come_back_equal(through):
    value = {"a": [1, 2.5, "x", None, b"y"], "b": {"c": (1,)}, "s": {1, 2}}
    assert through(value) == [value]


def test_groups_are_kept_apart(through):
    assert through({"a": 1}, {"b": 2}, {}) == [{"a": 1}, {"b": 2}, {}]


def test_lambdas_and_closures_come_back_working(through):
    step = 3
    (got,) = through({"add": lambda x: x + step})
    assert got["add"](4) == 7


def test_a_large_array_is_carried_beside_the_pickle_and_can_be_written(through):
    array = np.arange(100_000.0)
    (got,) = through({"x": array})
    np.testing.assert_array_equal(got["x"], array)
    got["x"][0] = -1
    assert array[0] == 0


def test_one_memory_used_by_two_groups_is_sent_once(through):
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
    "make",
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
def test_what_processes_share_arrives_as_a_fresh_one_of_its_kind(through, make):
    made = getattr(multiprocessing, make)()
    (got,) = through({"one": made, "same": made})
    assert type(got["one"]) is type(made)
    assert got["one"] is got["same"]
    assert got["one"] is not made
    for queue in (made, got["one"]):
        if hasattr(queue, "close"):
            queue.close()


def test_a_lock_that_is_held_in_the_notebook_arrives_free(through):
    lock = multiprocessing.Lock()
    with lock:
        (got,) = through({"lock": lock})
    assert got["lock"].acquire(block=False)


@pytest.mark.leaves("files")  # a barrier's counter lies in a heap that multiprocessing keeps
def test_a_semaphores_value_a_barriers_parties_and_a_queues_size_are_kept(through):
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


def test_stdout_means_the_stdout_of_whoever_receives_it(through):
    assert through({"out": sys.stdout})[0]["out"] is sys.stdout


def refusal(name, value):
    with pytest.raises(Exception) as caught:
        os.close(pickling.send([{"fine": 1, name: value}], ()))
    return str(pickling.explain([{"fine": 1, name: value}], (), {name: "Cell In[7]"}, caught.value))


def test_an_open_file_is_refused_by_its_name_its_cell_and_what_to_do():
    with Path(__file__).open() as file:
        said = refusal("notes", {"deep": [file]})
    assert "`notes` (builtins.dict, made in Cell In[7])" in said
    assert "an open file" in said
    assert "open it inside the function" in said


@pytest.mark.parametrize(
    ("make", "advice"),
    [
        (lambda: (x for x in "ab"), "list of its items"),
        (threading.Lock, "`lock` parameter"),
        (lambda: collections.deque([(x for x in "ab")]), "list of its items"),
    ],
)
def test_what_cannot_travel_is_refused_with_advice(make, advice):
    assert advice in refusal("thing", make())


def test_a_database_connection_is_refused_with_advice():
    with sqlite3.connect(":memory:") as connection:
        said = refusal("db", connection)
    connection.close()
    assert "connect inside the function" in said


TORCH = r"""
import os, sys, torch
from xla_nb.protocol import pickling

def through(**values):
    fd = pickling.send([values], ())
    return pickling.Parcel(fd).group(0), os.fstat(fd).st_size

base = torch.arange(10.0)
got, _ = through(base=base, view=base[2:5], empty=torch.zeros(0), half=torch.ones(3).bfloat16())
got["base"][2] = 99
assert got["view"][0] == 99, "views share memory no longer"
assert got["empty"].shape == (0,) and got["half"].dtype == torch.bfloat16

model = torch.nn.Linear(1000, 1000)
tied = torch.nn.Sequential(model, model)
got, size = through(tied=tied)
assert size < 1.1 * 4 * 1001 * 1000, size
assert got["tied"][0] is got["tied"][1]
assert isinstance(got["tied"][0].weight, torch.nn.Parameter)
assert torch.equal(got["tied"][0].weight, model.weight)
with torch.no_grad():
    got["tied"][0].weight.zero_()
assert model.weight.abs().sum() > 0
print("tensors fine")
"""


def test_tensors_keep_sharing_parameters_and_types():
    done = subprocess.run(
        [sys.executable, "-c", TORCH], capture_output=True, text=True, check=False, timeout=120
    )
    assert "tensors fine" in done.stdout, done.stderr
