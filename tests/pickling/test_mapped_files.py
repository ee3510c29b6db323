"""Shared file mappings: writes in the process that opened a parcel are visible here."""

import mmap
import multiprocessing
import os
from multiprocessing import shared_memory
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.returned import arrived
from xla_nb.pickling import pickler
from xla_nb.pickling.functions_and_classes import Live
from xla_nb.pickling.parcel import SHARED_MEMORY, Parcel, Unopened


@pytest.fixture
def mapped(tmp_path):
    """Creates a file of numbers and maps it."""
    return lambda: np.memmap(tmp_path / "numbers", dtype="f8", mode="w+", shape=(1000,))


def test_writes_to_a_mapped_file_and_its_views_are_seen_on_both_sides(mapped):
    numbers = mapped()
    views = {"part": numbers[1:9:2], "other": np.asarray(numbers)[4:]}
    got = arrived(share=True, numbers=numbers, **views)
    got["numbers"][3], numbers[4] = 7, 8
    assert (numbers[3], got["numbers"][4]) == (7, 8)
    assert type(got["numbers"]) is np.memmap
    assert got["numbers"].filename == numbers.filename
    got["part"][2] = 6  # numbers[5]
    assert numbers[5] == got["other"][1] == 6


def test_file_mapped_read_only_is_not_copied_and_stays_read_only(mapped):
    numbers = mapped()
    numbers[:] = 2
    packed = pickler.pack({"part": np.memmap(numbers.filename, "f8", "r")[10:]}, Live())
    fd = packed.to_memfd(share=True)
    assert os.fstat(fd).st_size < numbers.nbytes
    part = Parcel(fd).open()["part"]
    os.close(fd)
    assert not part.flags.writeable
    assert part.sum() == 2 * 990
    written = [{"numbers": numbers}, {"array": np.arange(10.0)}]  # only writable maps are shared
    shares = [packed.shares(), *(pickler.pack(values, Live()).shares() for values in written)]
    assert shares == [False, True, False]


@pytest.mark.leaves("files")  # multiprocessing keeps its heap
def test_array_and_tensor_views_of_shared_memory_are_shared():
    array = multiprocessing.get_context("spawn").RawArray("d", 4)
    got = arrived(share=True, array=array, view=np.frombuffer(array))
    got["view"][0], got["array"][1] = 1, 2
    assert array[:] == [1, 2, 0, 0]
    memory = shared_memory.SharedMemory(create=True, size=80)
    tensor = torch.from_numpy(np.ndarray((8,), buffer=memory.buf, offset=16))
    arrived(share=True, tensor=tensor)["tensor"][2] = 5
    assert tensor[2] == 5
    del tensor
    memory.close()
    memory.unlink()


@pytest.mark.leaves("files")  # torch and multiprocessing keep some open
def test_tensors_in_shared_memory_stay_shared_for_torch():
    model = torch.nn.Linear(2, 2).share_memory()
    got = arrived(
        share=True, model=model, weight=model.weight.detach(), row=model.weight.detach()[1]
    )
    assert all(one.is_shared() for one in [*got["model"].parameters(), got["weight"], got["row"]])
    got["model"].share_memory()  # as each Hogwild process does
    with torch.no_grad():
        got["model"].weight.fill_(7)
    assert model.weight.tolist() == got["weight"].tolist() == [[7, 7], [7, 7]]
    process = multiprocessing.get_context("spawn").Process(
        target=torch.Tensor.zero_, args=(got["row"],)
    )
    process.start()
    process.join()
    assert model.weight.tolist() == [[7, 7], [0, 0]]


def test_private_and_anonymous_maps_are_copied_as_are_all_without_sharing(mapped):
    numbers = mapped()
    private = np.memmap(numbers.filename, "f8", "c")
    arrived(share=True, private=private)["private"][0] = 5
    arrived(numbers=numbers)["numbers"][0] = 5
    assert private[0] == numbers[0] == 0
    with mmap.mmap(-1, 4096) as anonymous:  # shared only with forked processes
        array = np.frombuffer(anonymous, "u1")
        arrived(share=True, array=array)["array"][0] = 5
        assert array[0] == 0
        del array


def test_truncated_shared_memory_raises_an_error_that_names_it(mapped):
    numbers = mapped()
    packed = pickler.pack({"numbers": numbers}, Live())
    fd = packed.to_memfd(share=True)
    os.truncate(numbers.filename, 10)
    with pytest.raises(Unopened, match="has been truncated") as caught:
        Parcel(fd)
    assert caught.value.name == SHARED_MEMORY
    os.close(fd)


def test_opened_mapping_keeps_no_file_descriptor(mapped):
    numbers, before = mapped(), len([*Path("/proc/self/fd").iterdir()])
    fd = pickler.pack({"numbers": numbers}, Live()).to_memfd(share=True)
    held = Parcel(fd)
    os.close(fd)
    assert len(held.buffers) == 1
    assert len([*Path("/proc/self/fd").iterdir()]) == before
