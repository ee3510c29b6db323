"""Weak references that call somebody."""

THINGS = """
import weakref
class Thing: ...
box, log = [Thing()], []
"""


def test_a_weak_reference_calls_what_it_is_to_call(notebook):
    notebook.run(THINGS + "ref = weakref.ref(box[0], lambda one: log.append(one is ref))")
    cell = (
        "def f(rank):\n    lives = ref() is box[0]\n    box.clear()\n    return lives, ref(), log"
    )
    assert notebook.launch(cell) == (True, None, [True])


def test_its_owner_may_be_what_it_calls(notebook):
    notebook.run(
        THINGS + "class Owner:\n"
        "    def __init__(self): self.ref = weakref.ref(box[0], self.gone)\n"
        "    def gone(self, ref): log.append(ref is self.ref)\n"
        "owner = Owner()"
    )
    cell = "def f(rank):\n    box.clear()\n    return owner.ref(), log"
    assert notebook.launch(cell) == (None, [True])


def test_a_reference_that_is_dead_is_dead_on_ranks_and_calls_nobody(notebook):
    notebook.run(THINGS + "dead = [weakref.ref(Thing(), log.append)]\nlog.clear()")
    assert notebook.launch("def f(rank): return [ref() for ref in dead], log") == ([None], [])
