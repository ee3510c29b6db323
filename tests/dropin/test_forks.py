"""Ranks of a process that the notebook forks share with it what it gave to the process."""

import functools
import multiprocessing as mp
import types

import pytest

from tests.support.kernel import Notebook
from xla_nb.dropin import forks
from xla_nb.protocol import shared

FORK = mp.get_context("fork")


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    file = str(tmp_path_factory.mktemp("forks") / "log.txt")
    kernel = Notebook()
    kernel.ok("%load_ext xla_nb")
    kernel.ok(
        "import multiprocessing as mp\nimport torch_xla.distributed.xla_multiprocessing as xmp\n"
        "def logged():\n"
        f"    import sys\n    sys.stdout = sys.stderr = open({file!r}, 'a')\n"
        f"def log(): return open({file!r}).read()"
    )
    yield kernel
    kernel.close()


PROFILING = """
def _mp_fn(index, training_started):
    training_started.set()

def target_fn(training_started):
    logged()
    xmp.spawn(_mp_fn, args=(training_started,), nprocs=2, start_method='fork')

training_started = mp.Event()
p = mp.Process(target=target_fn, args=(training_started,))
p.start()
"""


@pytest.mark.leaves("processes")  # multiprocessing's, which counts semaphores
def test_ranks_set_the_event_that_the_notebook_waits_for(notebook):
    notebook.ok(PROFILING)
    assert notebook.value("training_started.wait(60)") == "True"
    notebook.ok("p.join(60)")
    assert notebook.value("p.exitcode, 'of their own' in log()") == "(0, False)"


COUNTED = """
value, queue = mp.Value("i", 0), mp.Queue()
class Counter(mp.Process):
    def __init__(self):
        super().__init__()
        self.values = {"count": value}
    def run(self):
        logged()
        values = self.values
        def f(index):
            queue.put(index)
            with values["count"].get_lock():
                values["count"].value += 1
        xmp.spawn(lambda index: f(index), nprocs=2)
p = Counter()
p.start()
found = sorted(queue.get(timeout=60) for _ in range(2))
p.join(60)
"""


@pytest.mark.leaves("processes")
def test_attributes_and_global_names_of_a_process_are_the_notebooks_too(notebook):
    notebook.ok(COUNTED)
    assert notebook.value("found, value.value, p.exitcode") == "([0, 1], 2, 0)"


@pytest.mark.leaves("processes")
def test_what_the_notebook_gives_away_serves_the_ranks_of_the_process(notebook):
    notebook.ok(
        "def f(index, lock, event):\n    event.set()\n    with lock: return index\n"
        "def child(lock, event, queue):\n"
        "    logged()\n"
        "    queue.put(dict(xmp.spawn(f, args=(lock, event), nprocs=2).items()))\n"
        "queue = mp.Queue()\n"
        "p = mp.Process(target=child, args=(mp.Lock(), mp.Event(), queue))\np.start()\n"
        "import gc; gc.collect()\nfound = queue.get(timeout=60)\np.join(60)"
    )
    assert notebook.value("found, p.exitcode") == "({0: 0, 1: 1}, 0)"


@pytest.fixture
def turned_on():
    forks.turn_on()
    yield
    forks.turn_off()


def _named(*primitives):
    return [shared._has_a_name(one) for one in primitives]


def _run(target, *args):
    process = FORK.Process(target=target, args=args)
    process.start()
    process.join()
    assert process.exitcode == 0
    process.close()


@pytest.fixture
def main(monkeypatch):
    """Makes a function of the notebook's own."""

    def made(code, **names):
        names["__name__"] = "__main__"
        exec(code, names)
        return names["f"]

    return made


def test_semaphores_get_names_wherever_a_function_of_the_notebook_finds_them(turned_on, main):
    locks = [FORK.Lock() for _ in range(6)]
    helper = main("def f(): return inner", inner=locks[0])
    held = types.SimpleNamespace(call=main("def f(lock=None): pass"))
    held.call.__defaults__ = (locks[1],)
    target = main("def f(*args): (lambda: helper)()", helper=helper, args=())
    _run(functools.partial(target, locks[4]), [held.call], {"lock": locks[2]}, (locks[3],))
    assert _named(*locks) == [True, True, True, True, True, False]


def test_what_a_librarys_process_gets_stays_as_it_is(turned_on):
    lock = FORK.Lock()
    _run(print, lock)
    assert _named(lock) == [False]


def test_what_another_process_may_be_using_stays_as_it_is(turned_on, main):
    lock, started, ended = FORK.Lock(), FORK.Event(), FORK.Event()
    waiting = FORK.Process(target=lambda: (started.set(), ended.wait()))
    waiting.start()
    started.wait()
    _run(main("def f(lock): pass"), lock)
    assert _named(lock) == [False]
    ended.set()
    waiting.join()
    waiting.close()


def test_a_process_starts_whatever_it_is_given(turned_on, main):
    class Hostile:
        __module__ = "__main__"

        @property
        def __dict__(self):
            raise ValueError("no")

    deep = [FORK.Lock()]
    for _ in range(5000):
        deep = [deep]
    _run(main("def f(*args): pass"), Hostile())
    _run(main("def f(*args): pass"), deep)


def test_a_long_list_is_taken_for_data(turned_on, main):
    lock = FORK.Lock()
    _run(main("def f(data): pass"), [lock] * 1001)
    assert _named(lock) == [False]


def test_turned_off_a_process_is_forked_as_multiprocessing_does(main):
    lock = FORK.Lock()
    forks.turn_on()
    forks.turn_off()
    _run(main("def f(lock): pass"), lock)
    assert _named(lock) == [False]
