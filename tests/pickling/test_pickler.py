"""Values sent and received through a parcel in one process."""

import io
import os
import sys
import threading

import numpy as np
import pytest
import torch

from tests.support.returned import arrived, opened, returned
from xla_nb.pickling import pickler
from xla_nb.pickling.functions_and_classes import Live, Notebook

WAYS = {"to ranks": lambda value: arrived(value=value)["value"], "to the notebook": returned}
both_ways = pytest.mark.parametrize("through", WAYS.values(), ids=WAYS)


class Refused(ValueError):
    """Its arguments differ from its message."""

    def __init__(self, code, reason):
        super().__init__(f"{code}: {reason}")
        self.code = code


@both_ways
def test_exceptions_keep_attributes_and_survive_unsendable_contexts(through):
    for kind in (AttributeError, NameError, ImportError):
        got = through(kind("no x", name="x"))
        assert (type(got), got.args, got.name, got.__cause__) == (kind, ("no x",), "x", None)
    error = Refused(5, "no")
    error.__cause__, error.__context__ = KeyError("k"), KeyError(threading.Lock())
    got = through(error)  # its context cannot be sent
    assert (type(got), str(got), vars(got)) == (type(error), str(error), vars(error))
    assert (repr(got.__cause__), got.__context__) == ("KeyError('k')", None)


def test_exception_that_reduces_to_another_type_is_sent_as_that_type():
    class Gone(Exception):
        def __reduce__(self):
            return str, ("gone",)

    error = Gone()
    error.__cause__ = KeyError()
    assert arrived(error=error) == {"error": "gone"}


@pytest.mark.parametrize("cut", [slice(None), slice(5), slice(400_000, 600_000)])
@pytest.mark.parametrize("first", ["whole", "part"])
def test_views_of_one_array_share_memory_that_is_sent_once(cut, first):
    array = np.zeros(1_000_000)
    values = {"whole": array, "part": array[cut]}
    packed = pickler.pack({first: values[first], **values}, Live())
    assert packed_bytes(packed) < 1.1 * array.nbytes
    got = opened(packed)
    got["part"][0] = 7
    assert got["whole"][cut][0] == 7
    assert got["whole"].sum() == 7
    assert array.sum() == 0


def packed_bytes(packed):
    fd = packed.to_memfd()
    try:
        return os.fstat(fd).st_size
    finally:
        os.close(fd)


def test_overlapping_arrays_and_tensors_share_memory_and_gaps_are_not_sent():
    array = np.zeros(1000)
    got = arrived(head=array[:600], tail=array[400:])
    got["head"][500] = 3
    assert got["tail"][100] == 3
    assert (got["head"].sum(), got["tail"].sum()) == (3, 3)
    whole, part = torch.from_numpy(array), torch.from_numpy(array[:5])
    for order in {"whole": whole, "part": part}, {"part": part, "whole": whole}:
        got = arrived(**order, array=array)
        got["part"][0] = 7
        assert got["whole"][0] == got["array"][0] == 7
    array = np.zeros((4, 4), "float32")
    got = arrived(part=array[0, 1::2], array=array, tensor=torch.from_numpy(array[::2]))
    got["part"][0] = 5
    assert got["array"][0, 1] == got["tensor"][0, 1] == 5
    packed = pickler.pack({"column": np.zeros((1000, 1000))[:, 1]}, Live())
    assert packed_bytes(packed) < 100_000


def test_arrays_keep_order_and_strides_and_broadcast_arrays_stay_small():
    base = np.arange(12.0).reshape(3, 4)
    got = arrived(f=np.asfortranarray(base), s=base[::2, ::2], e=np.zeros((0, 3)))
    np.testing.assert_array_equal(got["f"], base)
    np.testing.assert_array_equal(got["s"], base[::2, ::2])
    assert got["e"].shape == (0, 3)
    row = np.arange(4.0)
    windows = np.lib.stride_tricks.sliding_window_view(row, 2)
    got = arrived(many=np.broadcast_to(row, (1_000_000, 4)), windows=windows, row=row)
    assert (got["many"].strides, got["windows"].strides) == ((0, 8), (8, 8))
    assert not got["many"].flags.writeable
    got["row"][1] = 9
    assert (got["many"][777, 1], got["windows"][1, 0], got["windows"].tolist()[2]) == (9, 9, [2, 3])


@both_ways
@pytest.mark.parametrize("kind", ["bfloat16", "float8_e4m3fn", "uint16", "uint64", "complex64"])
def test_tensors_keep_their_dtype(through, kind):
    sent = torch.tensor([1, 2, 3]).to(getattr(torch, kind))
    got, parameter, empty = through([sent, torch.nn.Parameter(sent, requires_grad=False), sent[:0]])
    for each in got, parameter:
        assert each.dtype == sent.dtype
        assert each.tolist() == sent.tolist()
    assert empty.shape == (0,)


@both_ways
def test_optimizer_still_trains_its_parametrized_layer(through):
    sent = torch.nn.utils.parametrizations.weight_norm(torch.nn.Linear(2, 2))
    layer, optimizer = through([sent, torch.optim.SGD(sent.parameters(), lr=1)])
    x, before = torch.ones(1, 2), layer.weight.detach().clone()
    assert torch.equal(layer(x), sent(x))
    layer(x).sum().backward()
    optimizer.step()
    assert (before != layer.weight).any()


def test_gradient_is_sent_and_a_note_reports_a_dropped_grad_fn():
    x = torch.ones(2, requires_grad=True)
    (2 * x).sum().backward()
    got = arrived(x=x, gradient=x.grad)
    assert got["x"].grad is got["gradient"]
    assert got["gradient"].tolist() == [2, 2]
    live = Live(Notebook({"y": x}))
    pickler.pack({"y": [x * 2]}, live)
    assert live.notes == {"a tensor of `y` is sent without its grad_fn: backward() stops there"}


def test_module_used_twice_is_sent_once_and_stays_one_object():
    model = torch.nn.Linear(1000, 1000)
    packed = pickler.pack({"tied": torch.nn.Sequential(model, model)}, Live())
    assert packed_bytes(packed) < 1.1 * 4 * 1001 * 1000
    first, second = opened(packed)["tied"]
    assert first is second
    assert type(first.weight) is torch.nn.Parameter
    assert torch.equal(first.weight, model.weight)
    with torch.no_grad():
        first.weight.zero_()
    assert model.weight.abs().sum() > 0


class Loader(torch.utils.data.DataLoader):
    pass


@pytest.mark.parametrize("kind", [torch.utils.data.DataLoader, Loader])
def test_loader_is_sent_without_its_persistent_workers(kind):
    loader = kind([1, 2, 3], batch_size=3, num_workers=1, persistent_workers=True)
    loader.held = [loader]
    assert [batch.tolist() for batch in loader] == [[1, 2, 3]]
    try:
        for through in WAYS.values():
            got = through(loader)
            assert type(got) is kind
            assert got.held == [got]
            assert got._iterator is None
            assert (got.num_workers, got.persistent_workers, got.dataset) == (1, True, [1, 2, 3])
    finally:
        loader._iterator._shutdown_workers()


def test_standard_streams_and_their_methods_become_the_ranks_own(monkeypatch):
    class Stream:
        def write(self, text):
            raise OSError("of the notebook")

    monkeypatch.setattr(sys, "stdout", Stream())
    packed = pickler.pack({"out": sys.stdout, "write": sys.stdout.write}, Live())
    other = io.StringIO()
    monkeypatch.setattr(sys, "stdout", other)
    got = opened(packed)
    got["write"]("a")
    assert got["out"] is other
    assert other.getvalue() == "a"
