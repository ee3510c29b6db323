"""The lock that ranks share: behaves like multiprocessing's and knows which rank holds it."""

import multiprocessing
import os
import threading
from multiprocessing import synchronize

import pytest

from xla_nb.rank.lock import SharedLock

fork = multiprocessing.get_context("fork")
PATIENCE = 60  # seconds


@pytest.fixture(params=[SharedLock, fork.Lock], ids=["xla_nb", "multiprocessing"])
def either(request):
    """The shared lock, and multiprocessing's own lock, which must behave the same."""
    return request.param()


def in_a_process(function, *arguments):
    """The function's result in a forked process."""
    answers = fork.SimpleQueue()
    process = fork.Process(target=lambda: answers.put(function(*arguments)))
    process.start()
    answer = answers.get()
    process.join()
    answers.close()
    return answer


def waiting(lock, thread):
    """The wait of a thread, once it is waiting."""
    for _ in range(PATIENCE * 1000):
        if found := lock.waiting(thread.ident):
            return found
        thread.join(0.001)
    raise AssertionError("nobody waits")


# ---------------------------------------------------------------- like multiprocessing's lock


def test_lock_is_acquired_and_released(either):
    assert either.acquire() is True
    assert either.acquire(block=False) is False
    assert either.acquire(timeout=0.01) is False
    assert either.acquire(True, 0.01) is False
    assert either.release() is None
    with either as taken:
        assert taken is True
        assert either.acquire(False) is False
    assert either.acquire(False) is True
    either.release()


def test_releasing_a_free_lock_raises(either):
    with pytest.raises(ValueError, match="released too many times"):
        either.release()


def test_non_numeric_timeout_raises_even_for_a_free_lock(either):
    with pytest.raises(TypeError):
        either.acquire(timeout="soon")
    assert either.acquire(False) is True
    either.release()


def test_lock_is_released_when_the_block_raises(either):
    with pytest.raises(KeyError), either:
        raise KeyError
    assert either.acquire(False) is True
    either.release()


def test_other_process_cannot_acquire_but_may_release(either):
    either.acquire()
    assert in_a_process(either.acquire, False) is False
    in_a_process(either.release)
    assert either.acquire(False) is True
    either.release()


def test_lock_cannot_be_sent_to_a_spawned_process(either):
    with pytest.raises(RuntimeError):
        multiprocessing.reduction.ForkingPickler.dumps(either)


def test_condition_accepts_the_lock(either):
    condition = fork.Condition(either)
    with condition:
        assert condition.wait(timeout=0.01) is False


def test_shared_lock_is_a_multiprocessing_lock():
    assert isinstance(SharedLock(), synchronize.Lock)


# ---------------------------------------------------------------- the holder


def test_holder_of_the_lock_is_not_waiting():
    lock = SharedLock()
    lock.belongs_to(3)
    with lock:
        assert lock.waiting(threading.get_ident()) is None


def test_waiter_knows_the_holder_in_another_process():
    lock = SharedLock()
    lock.belongs_to(0)

    def take():
        lock.belongs_to(3)
        lock.acquire()
        return os.getpid()

    in_a_process(take)  # the process ends while holding the lock
    waiter = threading.Thread(target=lock.acquire, args=(True, PATIENCE))
    waiter.start()
    found = waiting(lock, waiter)
    assert (found.operation, found.missing) == ("lock", (3,))
    assert (waited := lock.waited(waiter.ident)) > 0
    lock.release()
    waiter.join()
    assert waited < lock.waited(waiter.ident) == lock.waited(waiter.ident)
    assert lock.waited(threading.get_ident()) == 0.0
    assert lock.waiting(waiter.ident) is None
    lock.release()


def test_next_holder_is_named():
    lock = SharedLock()
    lock.belongs_to(7)
    lock.acquire()
    found = in_a_process(wait_shortly, lock)
    assert found == (7,)
    lock.release()


def test_no_holder_is_named_until_the_next_is_known():
    lock = SharedLock()
    lock.belongs_to(7)
    with lock:
        pass
    lock._semlock.acquire()  # as `acquire` does first
    assert wait_shortly(lock) == ()


def test_child_process_of_a_rank_is_not_named_as_the_rank():
    lock = SharedLock()
    lock.belongs_to(0)
    in_a_process(lock.acquire)
    assert wait_shortly(lock) == ()


def wait_shortly(lock):
    """The ranks that a thread waits for while it tries to acquire the lock."""
    waiter = threading.Thread(target=lock.acquire, args=(True, PATIENCE))
    waiter.start()
    missing = waiting(lock, waiter).missing
    lock.release()
    waiter.join()
    return missing


def test_acquisitions_are_counted():
    lock = SharedLock()
    with lock:
        assert not lock.acquire(False)
    lock.acquire()
    lock.release()
    assert lock.taken == 2


# ---------------------------------------------------------------- after a program


def test_rank_still_holding_the_lock_releases_it_once():
    lock = SharedLock()
    lock.belongs_to(1)
    lock.acquire()
    assert lock.let_go() is True
    assert lock.let_go() is False
    assert lock.acquire(False) is True
    lock.release()


def test_rank_interrupted_in_acquire_or_release_releases_the_lock():
    lock = SharedLock()
    lock.belongs_to(1)
    lock._semlock.acquire()  # as `acquire` does first, and `release` last
    assert lock.let_go() is True
    assert lock.acquire(False) is True
    lock.release()


def test_lock_held_by_another_rank_is_not_released():
    lock = SharedLock()
    lock.belongs_to(0)
    in_a_process(take_as, lock, 3)
    assert lock.let_go() is False
    assert lock.acquire(False) is False


def test_lock_released_by_another_process_is_not_released_again():
    lock = SharedLock()
    lock.belongs_to(0)
    lock.acquire()
    in_a_process(lock.release)
    assert lock.let_go() is False
    in_a_process(take_as, lock, 3)
    assert lock.let_go() is False
    assert lock.acquire(False) is False


def take_as(lock, rank):
    lock.belongs_to(rank)
    return lock.acquire(False)
