"""What a module has bound, sent to the notebook with references to what the notebook has."""

import os
import threading

import numpy as np
import pytest
import torch

from xla_nb.protocol.keeping import pack_kept
from xla_nb.protocol.parcel import Parcel


@pytest.fixture
def sent():
    """What is sent, with `made` and `named` at the notebook's end."""

    def sent(values, made=None, named=None, there=None):
        fd = pack_kept(values, made or {}, named or {}).to_memfd()
        try:
            parcel = Parcel(fd)
        finally:
            os.close(fd)
        held = {**(made or {}), **(named or {}), **(there or {})}
        return parcel, parcel.open({}, held=held.__getitem__)

    return sent


def test_values_that_share_an_object_share_it(sent):
    shared = [1]
    _, values = sent({"a": {"x": shared}, "b": shared})
    assert values["a"]["x"] is values["b"]
    assert values["b"] is not shared


def test_an_object_of_the_notebook_is_referred_to_by_its_number(sent):
    inner, other = [1], [2]
    parcel, values = sent({"a": (inner, 3)}, made={7: inner, 8: other})
    assert values["a"][0] is inner
    assert parcel.about["objects"] == [7]


def test_what_the_notebook_executes_itself_is_referred_to_by_name(sent):
    class Net:
        pass

    class Mine:
        pass

    _, values = sent({"net": Net()}, named={"Net": Net}, there={"Net": Mine})
    assert type(values["net"]) is Mine


def test_constants_are_sent_by_value(sent):
    text = "".join(["a", "b"])
    parcel, values = sent({"a": [text, None, 3, len]}, made={1: text, 2: None, 3: 3, 4: len})
    assert values["a"] == ["ab", None, 3, len]
    assert parcel.about["objects"] == []


def test_what_cannot_be_sent_is_left_out_with_the_reason(sent):
    parcel, values = sent({"lock": threading.Lock(), "n": 3, "box": [threading.Lock()]})
    assert values == {"n": 3}
    told = "cannot pickle '_thread.lock' object. Use the `lock` parameter or a lock of"
    assert parcel.about["problems"]["lock"].startswith(told)
    assert parcel.about["problems"].keys() == {"lock", "box"}


def test_a_container_comes_as_it_is_also_where_its_class_changes_what_is_put_in(sent):
    class Vocab(dict):
        def __setitem__(self, key, value):
            super().__setitem__(key, value * 2)

    class Log(list):
        def append(self, item):
            super().append(item + 100)

    vocab, log = Vocab(), Log()
    vocab["a"], vocab.seen = 1, [log]
    log.append(1)
    _, values = sent({"vocab": vocab, "log": log})
    assert (values["vocab"], values["log"]) == ({"a": 2}, [101])
    assert values["vocab"].seen[0] is values["log"]


@pytest.mark.leaves("files")  # torch's
@pytest.mark.parametrize("made", ["memmap", "tensor"])
def test_shared_memory_that_a_launched_cell_makes_is_copied_and_a_note_tells(tmp_path, made):
    if made == "memmap":
        value = np.memmap(tmp_path / "numbers", "f8", "w+", shape=(3,))
    else:
        value = torch.zeros(3).share_memory_()
    (note,) = pack_kept({"value": value}, {}, {}).about["notes"]
    assert note.startswith("the notebook has copies of arrays and tensors in shared memory")
    assert pack_kept({"value": np.zeros(3)}, {}, {}).about["notes"] == []
