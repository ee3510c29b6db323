"""Values sent and received through a parcel in one process, or refused."""

import collections
import io
import os
import socket
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.returned import returned
from xla_nb.errors import ShippingError
from xla_nb.pickling import pickler, refusals
from xla_nb.pickling.functions_and_classes import Live
from xla_nb.pickling.parcel import Parcel


def live():
    """Nothing of a notebook."""
    return Live()


@pytest.fixture
def through():
    """Send values and read them back."""
    fds = []

    def through(values):
        fds.append(pickler.pack(values, live()).to_memfd())
        return Parcel(fds[-1]).open()

    yield through
    for fd in fds:
        os.close(fd)


def test_plain_values_come_back_equal(through):
    value = {"a": [1, 2.5, "x", None, b"y"], "b": {"c": (1,)}, "s": {1, 2}}
    assert through(value) == value


def test_closures_can_be_called(through):
    step = 3
    got = through({"add": lambda x: x + step})
    assert got["add"](4) == 7


class Refused(ValueError):
    def __init__(self, code, reason):
        super().__init__(f"{code}: {reason}")
        self.code = code


def test_an_exception_that_takes_other_arguments_than_its_message_comes_back(through):
    got = through({"e": Refused(5, "no")})["e"]
    assert (type(got), str(got), got.code) == (Refused, "5: no", 5)


def test_a_result_that_is_such_an_exception_comes_back():
    got = returned(Refused(5, "no"))
    assert (type(got), str(got), got.code) == (Refused, "5: no", 5)


class Twice(Exception):
    """It says itself how it is pickled."""

    def __init__(self, a, b):
        self.a, self.b = a, b

    def __reduce__(self):
        return Twice, (self.a, self.b)


@pytest.mark.parametrize("error", [Refused(5, "no"), Twice(1, 2), OSError(2, "gone", "x")])
@pytest.mark.parametrize("way", ["to ranks", "back"])
def test_an_exception_keeps_what_it_was_raised_from(through, way, error):
    error.__cause__, error.__context__ = KeyError("k"), ZeroDivisionError("/")
    error.__cause__.__context__ = error
    error.__notes__, error.__suppress_context__ = ["a note"], False
    got = returned(error) if way == "back" else through({"e": error})["e"]
    assert (type(got), str(got), vars(got)) == (type(error), str(error), vars(error))
    assert (repr(got.__cause__), repr(got.__context__)) == (
        "KeyError('k')",
        repr(error.__context__),
    )
    assert got.__cause__.__context__ is got
    assert not got.__suppress_context__


@pytest.mark.parametrize("way", ["to ranks", "back"])
@pytest.mark.parametrize("kind", [AttributeError, NameError, ImportError])
def test_an_exception_keeps_the_name_that_was_not_found(through, way, kind):
    error = kind("no x", name="x")
    got = returned(error) if way == "back" else through({"e": error})["e"]
    assert (got.args, got.name, got.__cause__) == (("no x",), "x", None)


@pytest.mark.parametrize("way", ["to ranks", "back"])
def test_an_exception_is_not_lost_with_one_that_cannot_be_sent(through, way):
    error = ValueError("the error")
    error.__context__ = KeyError(threading.Lock())
    got = returned(error) if way == "back" else through({"e": error})["e"]
    assert (str(got), got.__context__) == ("the error", None)


def test_an_exception_that_is_pickled_as_something_else_is_sent_as_that(through):
    class Gone(Exception):
        def __reduce__(self):
            return str, ("gone",)

    error = Gone()
    error.__cause__ = KeyError()
    assert through({"e": error}) == {"e": "gone"}


def test_a_type_without_a_name_comes_back_as_itself():
    kinds = [type({}.keys()), type(iter([])), type(collections.OrderedDict().keys()), type(None)]
    assert returned(kinds) == kinds


def test_a_large_array_arrives_writable(through):
    array = np.arange(100_000.0)
    got = through({"x": array})
    np.testing.assert_array_equal(got["x"], array)
    got["x"][0] = -1
    assert array[0] == 0


@pytest.mark.parametrize("cut", [slice(None), slice(5), slice(400_000, 600_000)])
@pytest.mark.parametrize("first", ["whole", "part"])
def test_views_of_one_array_share_its_memory_which_is_sent_once(through, cut, first):
    array = np.zeros(1_000_000)
    values = {"whole": array, "part": array[cut]}
    packed = pickler.pack({first: values[first], **values}, live())
    fd = packed.to_memfd()
    try:
        assert os.fstat(fd).st_size < 1.1 * array.nbytes
        got = Parcel(fd).open()
    finally:
        os.close(fd)
    got["part"][0] = 7
    assert got["whole"][cut][0] == 7
    assert got["whole"].sum() == 7


def test_arrays_that_overlap_at_their_ends_share_what_they_have_in_common(through):
    array = np.zeros(1000)
    got = through({"head": array[:600], "tail": array[400:]})
    got["head"][500] = 3
    assert got["tail"][100] == 3
    assert (got["head"].sum(), got["tail"].sum()) == (3, 3)


def test_a_fortran_ordered_and_a_strided_array_come_back_equal(through):
    base = np.arange(12.0).reshape(3, 4)
    got = through({"f": np.asfortranarray(base), "s": base[::2, ::2], "e": np.zeros((0, 3))})
    np.testing.assert_array_equal(got["f"], base)
    np.testing.assert_array_equal(got["s"], base[::2, ::2])
    assert got["e"].shape == (0, 3)


def test_stdout_arrives_as_the_receivers_stdout(through):
    assert through({"out": sys.stdout})["out"] is sys.stdout


def refusal(name, value):
    with pytest.raises(Exception) as caught:
        pickler.pack({"fine": 1, name: value}, live())
    details = refusals.described(value, "Cell In[7]")
    return str(ShippingError(refusals.refusal(name, details, caught.value)))


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
import os, sys, numpy, torch
from xla_nb.pickling import pickler as pickling
from xla_nb.pickling import refusals, results
from xla_nb.pickling.functions_and_classes import Live
from xla_nb.pickling.parcel import Parcel

def through(**values):
    fd = pickling.pack(values, Live()).to_memfd()
    return Parcel(fd).open(), os.fstat(fd).st_size

base = torch.arange(10.0)
got, _ = through(base=base, view=base[2:5], empty=torch.zeros(0), half=torch.ones(3).bfloat16())
got["base"][2] = 99
print("view sees a write to its base:", got["view"][0].item())
array = numpy.zeros(8, "float32")
part, whole = torch.from_numpy(array[:5]), torch.from_numpy(array)
for values in ({"part": part, "whole": whole}, {"whole": whole, "part": part}):
    again, _ = through(array=array, **values)
    again["part"][0] = 7
    print("of one array:", again["whole"][0].item(), again["array"][0])
array = numpy.zeros((4, 4), "float32")
again, size = through(part=array[0, 1::2], array=array, tensor=torch.from_numpy(array[::2]))
again["part"][0] = 5
print("with gaps:", again["array"][0, 1], again["tensor"][0, 1].item())
again, size = through(column=numpy.zeros((1000, 1000))[:, 1])
print("alone:", size < 100_000, again["column"].shape)

for kind in ("float8_e4m3fn", "uint16", "uint64", "complex64"):
    sent = torch.tensor([1, 2, 3]).to(getattr(torch, kind))
    again, _ = through(sent=sent, parameter=torch.nn.Parameter(sent, requires_grad=False))
    fd = os.memfd_create("home")
    results.pack_home([sent], ()).write(fd)
    for each in (again["sent"], again["parameter"], *Parcel(fd).open()["result"]):
        assert each.dtype == sent.dtype and each.tolist() == sent.tolist(), kind

layer = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(2, 2))
again, _ = through(layer=layer, optimizer=torch.optim.SGD(layer.parameters(), lr=1))
again["layer"](torch.ones(1, 2)).sum().backward()
before = again["layer"].weight.detach().clone()
again["optimizer"].step()
print("parametrized:", bool((before != again["layer"].weight).any()))

shared = torch.ones(2).share_memory_()
sent = pickling.pack({"s": shared, "a": shared.numpy()}, Live())
parts = Parcel(sent.to_memfd(share=True)).open()
parts["s"][0] = 5
print("shared:", shared[0].item(), parts["a"][0])

x = torch.ones(2, requires_grad=True)
(2 * x).sum().backward()
again, _ = through(x=x, g=x.grad, p=torch.nn.Parameter(torch.ones(1)))
print("gradient:", again["x"].grad is again["g"], again["g"].tolist(), again["p"].grad)
live = Live()
pickling.pack({"y": x * 2}, live)
print("computed:", live.notes)
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
        "of one array: 7.0 7.0",
        "of one array: 7.0 7.0",
        "with gaps: 5.0 5.0",
        "alone: True (1000,)",
        "parametrized: True",
        "shared: 5.0 5.0",
        "gradient: True [2.0, 2.0] None",
        "computed: {'a tensor is sent without what computed it (its grad_fn): backward() ends "
        "there'}",
        "empty: (0,)",
        "half: torch.bfloat16",
        "sent once: True",
        "still tied: True",
        "type: Parameter",
        "equal: True",
        "a copy: True",
    ]


def test_a_memory_format_of_torch_comes_back(through):
    sent = {"format": torch.channels_last}
    assert through(sent) == sent
    assert b"_utils" not in pickler.pack(sent, live()).stream  # ranks may have no such module


class Loader(torch.utils.data.DataLoader):
    pass


@pytest.mark.parametrize("kind", [torch.utils.data.DataLoader, Loader])
def test_a_loader_is_sent_without_the_workers_that_it_keeps(through, kind):
    loader = kind([1, 2, 3], batch_size=3, num_workers=1, persistent_workers=True)
    loader.held = [loader]
    assert [batch.tolist() for batch in loader] == [[1, 2, 3]]
    try:
        for got in (through({"loader": loader})["loader"], returned(loader)):
            assert type(got) is kind
            assert got.held == [got]
            assert got._iterator is None
            assert (got.num_workers, got.persistent_workers, got.dataset) == (1, True, [1, 2, 3])
    finally:
        loader._iterator._shutdown_workers()


def test_a_method_of_a_standard_stream_is_the_ranks_streams(monkeypatch):
    class Stream:
        def write(self, text):
            raise OSError("of the notebook")

    monkeypatch.setattr(sys, "stdout", Stream())
    packed = pickler.pack({"write": sys.stdout.write}, live())
    other = io.StringIO()
    monkeypatch.setattr(sys, "stdout", other)
    fd = packed.to_memfd()
    Parcel(fd).open()["write"]("a")
    os.close(fd)
    assert other.getvalue() == "a"
