"""Detection of the blocking call that a thread is in, without side effects."""

import queue
import socket
import subprocess
import sys
import threading
import time

import pytest

from xla_nb.rank import meter
from xla_nb.rank.meter import Standstill

SECONDS = 0.3


@pytest.fixture(autouse=True)
def cells_are_not_ours(monkeypatch):
    monkeypatch.setattr(meter, "_OURS", "/nowhere/")


def detect(act, every=0.02, most=10.0):
    """The calls detected while a thread runs `act`, and the seconds spent in them."""
    found, made, over = set(), threading.Event(), threading.Event()

    def run():
        nonlocal still
        still = Standstill(threading.get_ident(), most)
        made.set()
        act()
        over.set()
        while looks:  # an ended thread has no CPU clock
            sum(range(1000))

    still, looks = None, True
    thread = threading.Thread(target=run)
    thread.start()
    made.wait()
    while not over.wait(every):
        still.look()
        found.add(still.call)
    looks = False
    thread.join()
    return found - {""}, still.seconds


def sleeps_by_its_own_name():
    from time import sleep as rest

    rest(SECONDS)


def gets():
    with pytest.raises(queue.Empty):
        queue.Queue().get(timeout=SECONDS)


def gets_from_a_simple_queue():
    waiting = queue.SimpleQueue()
    with pytest.raises(queue.Empty):
        waiting.get(timeout=SECONDS)


def joins():
    thread = threading.Thread(target=time.sleep, args=(SECONDS,))
    thread.start()
    thread.join()


def receives():
    one, other = socket.socketpair()
    with one, other, pytest.raises(TimeoutError):
        one.settimeout(SECONDS)
        one.recv(1)


def runs():
    subprocess.run([sys.executable, "-c", f"import time; time.sleep({2 * SECONDS})"], check=True)


CALLS = {
    "time.sleep": lambda: time.sleep(SECONDS),
    "Queue.get": gets,
    "SimpleQueue.get": gets_from_a_simple_queue,
    "Event.wait": lambda: threading.Event().wait(SECONDS),
    "Thread.join": joins,
    "socket.recv": receives,
    "subprocess.run": runs,
}


@pytest.mark.parametrize("name", CALLS)
def test_blocking_call_is_named(name):
    found, seconds = detect(CALLS[name])
    assert found == {name}
    assert seconds > SECONDS / 2


def test_aliased_blocking_call_is_named():
    assert detect(sleeps_by_its_own_name)[0] == {"time.sleep"}


def test_blocking_call_in_cell_code_is_named():
    code = compile(f"import time\ntime.sleep(\n    {SECONDS}\n)", "Cell In[1]", "exec")
    assert detect(lambda: exec(code, {}))[0] == {"time.sleep"}


def computes(seconds=SECONDS):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        sum(range(1000))


def test_computing_thread_is_in_no_blocking_call():
    assert detect(computes) == (set(), 0.0)


def test_calls_shorter_than_the_interval_count_proportionally():
    def mostly_sleeps():
        for _ in range(20):
            time.sleep(0.02)
            computes(0.005)

    found, seconds = detect(mostly_sleeps, every=0.03)
    assert found == {"time.sleep"}
    assert seconds > 0.1


def test_time_on_a_processor_is_not_in_the_call_that_late_looks_find():
    """A C function that holds the GIL lets looks happen only in the calls between."""

    off_processor = []

    def mostly_computes():
        began, used = time.monotonic(), time.thread_time()
        for _ in range(3):
            computes(0.6)
            time.sleep(0.1)
        off_processor.append(time.monotonic() - began - (time.thread_time() - used))

    found, seconds = detect(mostly_computes, every=0.65)
    assert found <= {"time.sleep"}
    assert seconds < off_processor[0] + 0.2  # others may use the processors


def test_time_without_looks_is_unknown():
    assert detect(CALLS["time.sleep"], every=0.2, most=0.1)[1] == 0.0


def test_unresolvable_call_is_not_named():
    made = {"clock": time}
    assert detect(lambda: made["clock"].sleep(SECONDS))[0] == set()


def test_looking_keeps_no_object_alive():
    gone = []

    class Held:
        def __del__(self):
            gone.append(time.monotonic())

    def act():
        held = Held()
        time.sleep(SECONDS)
        del held
        assert gone

    detect(act)
    assert gone


def test_function_returning_during_the_look_is_not_kept_alive(monkeypatch):
    goes_on, gone, found = threading.Event(), threading.Event(), []

    class Held:
        def __del__(self):
            gone.set()

    def act():
        held = Held()  # noqa: F841 # alive until `act` returns
        goes_on.wait()

    def read(*_):
        goes_on.set()
        found.append(gone.wait(2))
        return []

    monkeypatch.setattr(meter, "_names", read)
    detect(act)
    assert found[0]


def test_looking_does_not_update_the_locals_dict():
    def act():
        from time import sleep as rest

        before = locals()
        later = "later"
        rest(SECONDS)
        assert "later" not in before
        return later

    assert detect(act)[0] == set()


def test_looking_runs_no_user_code():
    looked_up = []

    class Owner:
        @property
        def waiting(self):
            looked_up.append(1)
            return queue.SimpleQueue()

    def act():
        owner = Owner()
        with pytest.raises(queue.Empty):
            owner.waiting.get(timeout=SECONDS)

    assert detect(act)[0] == set()
    assert len(looked_up) == 1
