"""The lock that ranks share: multiprocessing's in all that it does, and it knows who holds it."""

import multiprocessing
import os
import threading
from multiprocessing import synchronize

import pytest

from xla_nb.rank.lock import SharedLock

fork = multiprocessing.get_context("fork")
PATIENCE = 60  # seconds


@pytest.fixture(params=[SharedLock, fork.Lock], ids=["ours", "multiprocessing's"])
def either(request):
    """What is said of it is said of multiprocessing's own too."""
    return request.param()


def in_a_process(function, *arguments):
    """What a forked process finds."""
    answers = fork.SimpleQueue()
    process = fork.Process(target=lambda: answers.put(function(*arguments)))
    process.start()
    answer = answers.get()
    process.join()
    answers.close()
    return answer


def waiting(lock, thread):
    """The wait of a thread, as soon as it is in one."""
    for _ in range(PATIENCE * 1000):
        if found := lock.waiting(thread.ident):
            return found
        thread.join(0.001)
    raise AssertionError("nobody waits")


# ---------------------------------------------------------------- as multiprocessing's


def test_it_is_taken_and_given_back(either):
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


def test_to_give_back_what_nobody_has_is_an_error(either):
    with pytest.raises(ValueError, match="released too many times"):
        either.release()


def test_a_timeout_that_is_no_number_is_an_error_even_of_a_free_lock(either):
    with pytest.raises(TypeError):
        either.acquire(timeout="soon")
    assert either.acquire(False) is True
    either.release()


def test_it_is_given_back_when_the_block_raises(either):
    with pytest.raises(KeyError), either:
        raise KeyError
    assert either.acquire(False) is True
    either.release()


def test_another_process_is_kept_out_and_may_give_it_back(either):
    either.acquire()
    assert in_a_process(either.acquire, False) is False
    in_a_process(either.release)
    assert either.acquire(False) is True
    either.release()


def test_it_is_not_sent_to_a_spawned_process(either):
    with pytest.raises(RuntimeError):
        multiprocessing.reduction.ForkingPickler.dumps(either)


def test_a_condition_can_be_made_of_it(either):
    condition = fork.Condition(either)
    with condition:
        assert condition.wait(timeout=0.01) is False


def test_it_is_a_lock_of_multiprocessing():
    assert isinstance(SharedLock(), synchronize.Lock)


# ---------------------------------------------------------------- who holds it


def test_nobody_waits_for_a_free_lock():
    lock = SharedLock()
    lock.belongs_to(3)
    with lock:
        assert lock.waiting(threading.get_ident()) is None


def test_who_waits_learns_which_rank_holds_it_also_of_another_process():
    lock = SharedLock()
    lock.belongs_to(0)

    def take():
        lock.belongs_to(3)
        lock.acquire()
        return os.getpid()

    in_a_process(take)  # which ends with it
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


def test_the_next_one_to_hold_it_is_named():
    lock = SharedLock()
    lock.belongs_to(7)
    lock.acquire()
    found = in_a_process(wait_shortly, lock)
    assert found == (7,)
    lock.release()


def test_in_the_moment_before_the_next_one_is_known_nobody_is_named():
    lock = SharedLock()
    lock.belongs_to(7)
    with lock:
        pass
    lock._semlock.acquire()  # as `acquire` does first
    assert wait_shortly(lock) == ()


def test_of_a_process_that_a_rank_started_it_is_not_said_that_it_is_the_rank():
    lock = SharedLock()
    lock.belongs_to(0)
    in_a_process(lock.acquire)
    assert wait_shortly(lock) == ()


def wait_shortly(lock):
    """For whom a thread waits that tries to take it."""
    waiter = threading.Thread(target=lock.acquire, args=(True, PATIENCE))
    waiter.start()
    missing = waiting(lock, waiter).missing
    lock.release()
    waiter.join()
    return missing


def test_it_is_counted_how_often_a_process_has_got_it():
    lock = SharedLock()
    with lock:
        assert not lock.acquire(False)
    lock.acquire()
    lock.release()
    assert lock.taken == 2


# ---------------------------------------------------------------- after a program


def test_a_rank_that_has_it_still_gives_it_back_once():
    lock = SharedLock()
    lock.belongs_to(1)
    lock.acquire()
    assert lock.let_go() is True
    assert lock.let_go() is False
    assert lock.acquire(False) is True
    lock.release()


def test_one_that_is_interrupted_as_it_gets_it_or_gives_it_back_still_has_it():
    lock = SharedLock()
    lock.belongs_to(1)
    lock._semlock.acquire()  # as `acquire` does first, and `release` last
    assert lock.let_go() is True
    assert lock.acquire(False) is True
    lock.release()


def test_that_of_another_rank_stays():
    lock = SharedLock()
    lock.belongs_to(0)
    in_a_process(take_as, lock, 3)
    assert lock.let_go() is False
    assert lock.acquire(False) is False


def test_one_that_another_process_gave_back_is_not_given_back_twice():
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
