"""Loggers of the notebook are on ranks what they are in the notebook, but for their handlers."""

import logging

import pytest

from tests.support.notebook_double import opened

notebook = pytest.fixture(opened)

APP = "xla_nb_test_app"
MADE = f"""
import logging
class NoFoo(logging.Filter):
    def filter(self, record): return "foo" not in record.msg
lg = logging.getLogger("{APP}")
"""


@pytest.fixture(autouse=True)
def forgotten():
    yield
    forget()


def forget():
    """Let the loggers of this process be as in one that has just begun, as a rank has."""
    known = logging.root.manager.loggerDict
    for name in [name for name in known if name.startswith(APP)]:
        del known[name]
    vars(logging.root).pop("custom", None)
    logging.root.filters.clear()


def launched(notebook, source):
    program = notebook.build(source)
    forget()
    return notebook.rank(program)


#: Each is true on a rank, of what the notebook has executed.
ON_RANKS = {
    "filters": ("lg.addFilter(NoFoo())", "[type(f) for f in lg.filters] == [NoFoo]"),
    "a filter that is a function": (
        "def keep(record): return record.msg != word\nword = 'no'\nlg.addFilter(keep)",
        "lg.filters == [keep] and not lg.filters[0](logging.makeLogRecord({'msg': 'no'}))",
    ),
    "attributes": ("lg.custom = {'a': lg}", "lg.custom['a'] is lg"),
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
    "its class": (
        "class Loud(logging.Logger):\n    def shout(self): return 'HEY'\n"
        f"logging.setLoggerClass(Loud)\nlg = logging.getLogger('{APP}.loud')\n"
        "logging.setLoggerClass(logging.Logger)",
        "type(lg) is Loud and lg.shout() == 'HEY'",
    ),
    "the root": (
        "lg = logging.getLogger()\nlg.custom = 3\nlg.addFilter(NoFoo())",
        "lg is logging.root and lg.custom == 3 and type(lg.filters[0]) is NoFoo",
    ),
    "filters of one that is only asked for by its name": (
        "lg.addFilter(NoFoo())",
        f"type(logging.getLogger('{APP}').filters[0]) is NoFoo",
    ),
    "one that getLogger does not find": (
        f"lg = logging.Logger('{APP}')\nlg.custom = 3",
        "type(lg) is logging.Logger and lg.custom == 3 and lg is not logging.getLogger(lg.name)",
    ),
    "no handlers": ("lg.addHandler(logging.NullHandler())", "lg.handlers == []"),
}


@pytest.mark.parametrize(("made", "is_so"), ON_RANKS.values(), ids=ON_RANKS)
def test_a_rank_has_the_notebooks_logger(notebook, made, is_so):
    notebook.run(MADE + made)
    assert launched(notebook, f"def f(rank): return {is_so}")


def test_filters_that_cannot_be_sent_of_a_logger_that_is_not_used_are_left_out_with_a_note(
    notebook,
):
    notebook.run(
        MADE + "import threading\nno = NoFoo()\nno.lock = threading.Lock()\nlg.addFilter(no)"
    )
    program = notebook.build("def f(rank): return 3")
    assert notebook.rank(program) == 3
    assert [note for note in program.notes if APP in note] == [
        f"the filters of the logger `{APP}` cannot be sent: ranks do without them"
    ]


def test_a_note_says_that_what_a_logger_writes_is_lost_without_its_handlers(notebook):
    notebook.run(MADE + "lg.propagate = False")
    assert not notebook.build("def f(rank): lg.info('')").notes
    notebook.run("lg.addHandler(logging.NullHandler())")
    assert notebook.build("def f(rank): lg.info('')").notes == (
        f"the logger `{APP}` is without its handlers on ranks, and does not propagate: give it a "
        "handler there",
    )
