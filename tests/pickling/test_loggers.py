"""Loggers of the notebook are on ranks what they are in the notebook, but for their handlers."""

import logging
import sys
import types

import pytest

APP = "xla_nb_test_app"
MADE = f"""
import logging
lg = logging.getLogger("{APP}")
"""


@pytest.fixture(autouse=True)
def forget():
    """Lets the loggers of this process be as in one that has just begun, as a rank has."""

    def forget():
        known = logging.root.manager.loggerDict
        for name in [name for name in known if name.startswith(APP)]:
            del known[name]

    yield forget
    forget()


#: Each is true on a rank, of what the notebook has executed.
ON_RANKS = {
    "its level": (
        "lg.isEnabledFor(15); lg.setLevel(15)",
        "(lg.level, lg.isEnabledFor(14), lg.isEnabledFor(15)) == (15, False, True)",
    ),
    "whether it propagates and is disabled": (
        "lg.propagate, lg.disabled = False, True",
        "(lg.propagate, lg.disabled) == (False, True)",
    ),
    "its name and its place": (
        f"child = logging.getLogger('{APP}.child')",
        "lg is logging.getLogger(lg.name) and child.parent is lg and lg.parent is logging.root",
    ),
    "the root": ("lg = logging.getLogger()", "lg is logging.root"),
    "no handlers": ("lg.addHandler(logging.NullHandler())", "lg.handlers == []"),
}


@pytest.mark.parametrize(("made", "is_so"), ON_RANKS.values(), ids=ON_RANKS)
def test_a_rank_has_the_notebooks_logger(notebook, forget, made, is_so):
    notebook.run(MADE + made)
    program = notebook.build(f"def f(rank): return {is_so}")
    forget()
    assert notebook.rank(program)


def test_a_note_says_that_what_a_logger_writes_is_lost_without_its_handlers(notebook, monkeypatch):
    cell = "def f(rank): lg.info('')"
    notebook.run(MADE + "lg.propagate = False")
    assert not notebook.build(cell).notes
    notebook.run("lg.addHandler(logging.NullHandler())")
    assert notebook.build(cell).notes == (
        f"the logger `{APP}` is without its handlers on ranks, and does not propagate: give it a "
        "handler there",
    )
    notebook.run("lg.handlers[:] = [logging.StreamHandler()]")
    monkeypatch.setitem(sys.modules, APP, types.ModuleType(APP))  # which gives it one there
    assert notebook.build(cell).notes == ()
