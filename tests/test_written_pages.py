"""The kernel tells which memory is unwritten, and what it does not know of counts as written."""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import threading

import numpy
import pytest

from xla_nb.written_pages import Region, Watch, watch

_PAGE = mmap.PAGESIZE
_SIZE = 64 * _PAGE


def _watched(memory: mmap.mmap) -> Watch:
    made = watch(_address(memory), len(memory))
    if made is None:
        pytest.skip("this kernel does not tell")
    return made


def _address(memory: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))


def _memory() -> mmap.mmap:
    memory = mmap.mmap(-1, _SIZE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory[:] = b"x" * _SIZE
    return memory


def _pages(regions: list[Region], memory: mmap.mmap) -> set[int]:
    first = _address(memory)
    return {n for a, b in regions for n in range((a - first) // _PAGE, (b - first) // _PAGE)}


_ALL = set(range(_SIZE // _PAGE))


def test_what_nobody_writes_to_is_unwritten() -> None:
    memory = _memory()
    watched = _watched(memory)
    assert _pages(watched.unwritten(), memory) == _ALL
    assert memory[:] == b"x" * _SIZE
    assert _pages(watched.unwritten(), memory) == _ALL


def test_a_page_that_is_written_to_is_not_named_once() -> None:
    memory = _memory()
    watched = _watched(memory)
    memory[3 * _PAGE] = memory[60 * _PAGE + 5] = 7
    assert _pages(watched.unwritten(), memory) == _ALL - {3, 60}
    assert _pages(watched.unwritten(), memory) == _ALL


def test_all_who_watch_a_page_are_told() -> None:
    memory = _memory()
    one, other = _watched(memory), _watched(memory)
    memory[3 * _PAGE] = 7
    assert _pages(one.unwritten(), memory) == _ALL - {3}
    assert _pages(other.unwritten(), memory) == _ALL - {3}
    memory[4 * _PAGE] = 7
    _watched(memory)
    assert _pages(one.unwritten(), memory) == _ALL - {4}
    assert _pages(other.unwritten(), memory) == _ALL - {4}


def test_what_the_kernel_writes_is_noticed() -> None:
    memory = _memory()
    watched = _watched(memory)
    end, start = os.pipe()
    os.write(start, b"abc")
    os.readv(end, [memoryview(memory)[9 * _PAGE :][:3]])
    os.close(end)
    os.close(start)
    assert _pages(watched.unwritten(), memory) == _ALL - {9}


def test_what_another_thread_writes_is_noticed() -> None:
    memory = _memory()
    watched = _watched(memory)
    thread = threading.Thread(target=memory.__setitem__, args=(9 * _PAGE, 1))
    thread.start()
    thread.join()
    assert _pages(watched.unwritten(), memory) == _ALL - {9}


def test_no_write_is_missed_while_pages_are_asked_about() -> None:
    memory = _memory()
    watched = _watched(memory)
    array = numpy.frombuffer(memory, numpy.uint8).reshape(-1, _PAGE)
    known, stop = array.copy(), threading.Event()

    def write() -> None:
        generator = numpy.random.default_rng(0)
        while not stop.is_set():
            array[generator.integers(64), generator.integers(_PAGE)] += 1

    thread = threading.Thread(target=write)
    thread.start()
    for _ in range(300):
        changed = sorted(_ALL - _pages(watched.unwritten(), memory))
        known[changed] = array[changed]
    stop.set()
    thread.join()
    changed = sorted(_ALL - _pages(watched.unwritten(), memory))
    known[changed] = array[changed]
    assert (known == array).all()


def test_memory_that_was_given_back_counts_as_written() -> None:
    memory = _memory()
    watched = _watched(memory)
    memory.madvise(mmap.MADV_DONTNEED, 5 * _PAGE, 3 * _PAGE)
    assert memory[5 * _PAGE] == 0  # which makes it a page again
    memory[6 * _PAGE] = 1
    assert not _pages(watched.unwritten(), memory) & {5, 6, 7}
    memory.madvise(mmap.MADV_DONTNEED, 6 * _PAGE, _PAGE)
    assert memory[6 * _PAGE] == 0
    assert not _pages(watched.unwritten(), memory) & {6}


def test_memory_that_is_another_mapping_by_now_counts_as_written() -> None:
    memory = _memory()
    watched = _watched(memory)
    address = _address(memory)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    fixed = 0x10
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | fixed
    assert libc.mmap(address, _SIZE, 3, flags, -1, 0) == address
    assert watched.unwritten() == []


def test_a_copy_of_the_process_knows_nothing() -> None:
    memory = _memory()
    watched = _watched(memory)
    pid = os.fork()
    if pid == 0:
        memory[0] = 1
        os.kill(os.getpid(), signal.SIGKILL if watched.unwritten() == [] else signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    assert _pages(watched.unwritten(), memory) == _ALL
    memory[7 * _PAGE] = 1
    assert _pages(watched.unwritten(), memory) == _ALL - {7}


def test_memory_that_others_can_write_to_is_not_watched() -> None:
    shared = mmap.mmap(-1, _SIZE)
    assert watch(_address(shared), _SIZE) is None


def test_less_than_a_page_is_not_watched() -> None:
    memory = _memory()
    assert watch(_address(memory) + 1, _PAGE) is None
