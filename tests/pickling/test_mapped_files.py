"""Shared mappings of files: what is written where a parcel was opened is seen here."""

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
    """Makes a file of numbers and maps it."""
    return lambda: np.memmap(tmp_path / "numbers", dtype="f8", mode="w+", shape=(1000,))


def test_what_is_written_to_a_mapped_file_and_its_views_is_seen_on_both_sides(mapped):
    numbers = mapped()
    views = {"part": numbers[1:9:2], "other": np.asarray(numbers)[4:]}
    got = arrived(share=True, numbers=numbers, **views)
    got["numbers"][3], numbers[4] = 7, 8
    assert (numbers[3], got["numbers"][4]) == (7, 8)
    assert type(got["numbers"]) is np.memmap
    assert got["numbers"].filename == numbers.filename
    got["part"][2] = 6  # numbers[5]
    assert numbers[5] == got["other"][1] == 6


def test_a_file_mapped_to_be_read_is_not_copied_and_stays_read_only(mapped):
    numbers = mapped()
    numbers[:] = 2
    packed = pickler.pack({"part": np.memmap(numbers.filename, "f8", "r")[10:]}, Live())
    fd = packed.to_memfd(share=True)
    assert os.fstat(fd).st_size < numbers.nbytes
    part = Parcel(fd).open()["part"]
    os.close(fd)
    assert not part.flags.writeable
    assert part.sum() == 2 * 990
    written = [{"numbers": numbers}, {"array": np.arange(10.0)}]  # it shares what can be written?
    shares = [packed.shares(), *(pickler.pack(values, Live()).shares() for values in written)]
    assert shares == [False, True, False]


@pytest.mark.leaves("files")  # multiprocessing keeps its heap
def test_arrays_over_a_shared_array_and_tensors_over_a_part_of_shared_memory_are_shared():
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


@pytest.mark.leaves("files")  # torch and multiprocessing keep some
def test_tensors_in_shared_memory_are_shared_for_torch_too():
    model = torch.nn.Linear(2, 2).share_memory()
    got = arrived(
        share=True, model=model, weight=model.weight.detach(), row=model.weight.detach()[1]
    )
    assert all(one.is_shared() for one in [*got["model"].parameters(), got["weight"], got["row"]])
    got["model"].share_memory()  # as each process of a Hogwild does
    with torch.no_grad():
        got["model"].weight.fill_(7)
    assert model.weight.tolist() == got["weight"].tolist() == [[7, 7], [7, 7]]
    process = multiprocessing.get_context("spawn").Process(
        target=torch.Tensor.zero_, args=(got["row"],)
    )
    process.start()
    process.join()
    assert model.weight.tolist() == [[7, 7], [0, 0]]


def test_maps_that_are_private_or_without_a_file_are_copied_and_so_is_all_without_sharing(mapped):
    numbers = mapped()
    private = np.memmap(numbers.filename, "f8", "c")
    arrived(share=True, private=private)["private"][0] = 5
    arrived(numbers=numbers)["numbers"][0] = 5
    assert private[0] == numbers[0] == 0
    with mmap.mmap(-1, 4096) as anonymous:  # shared with forked processes alone
        array = np.frombuffer(anonymous, "u1")
        arrived(share=True, array=array)["array"][0] = 5
        assert array[0] == 0
        del array


def test_shared_memory_that_is_gone_is_named(mapped):
    numbers = mapped()
    packed = pickler.pack({"numbers": numbers}, Live())
    fd = packed.to_memfd(share=True)
    os.truncate(numbers.filename, 10)
    with pytest.raises(Unopened, match="has been truncated") as caught:
        Parcel(fd)
    assert caught.value.name == SHARED_MEMORY
    os.close(fd)


def test_what_is_mapped_holds_no_descriptor_by_which_others_could_be_told_to_open_it(mapped):
    numbers, before = mapped(), len([*Path("/proc/self/fd").iterdir()])
    fd = pickler.pack({"numbers": numbers}, Live()).to_memfd(share=True)
    held = Parcel(fd)
    os.close(fd)
    assert len(held.buffers) == 1
    assert len([*Path("/proc/self/fd").iterdir()]) == before
