"""Hostile results and exceptions: every rank keeps its own outcome.

One run has a rank for each case.
"""

import json

import pytest

#: Results: the expression that a rank returns, and its outcome: a test of the value (`it`) in the
#: notebook, or the kind of its error and a part of the message.
RESULTS = {
    "7": "it == 7",
    "Repr(lambda: time.sleep(600))": "type(it) is Repr",
    "Repr(lambda: sys.exit(0))": "type(it) is Repr",
    "Repr(lambda: os._exit(3))": "type(it) is Repr",
    "Repr(lambda: raising(KeyboardInterrupt))": "type(it) is Repr",
    "Repr(lambda: 5)": "type(it) is Repr",
    "Repr(lambda: '\\ud800\\0')": "type(it) is Repr",
    "Repr(lambda: 'x' * 10**8)": "type(it) is Repr",
    "endless_list()": "it[0] is it",
    "'\\ud800\\0'": "it == '\\ud800\\0'",
    "bytearray(1 << 28)": "len(it) == 1 << 28",
    "many(10_000)": "len(it.exceptions) == 10_000",
    "caused(ValueError('a'), ValueError('b'))": "it.__cause__.__cause__ is it",
    "Hidden()": ("ResultError", "Hidden"),
    "Reduce(lambda: raising(ValueError('no')))": ("ResultError", "no"),
    "Reduce(lambda: sys.exit(0))": ("ResultError", "SystemExit"),
    "Reduce(lambda: raising(Quit()))": ("ResultError", "Quit"),
    "Reduce(lambda: raising(Mute()))": ("ResultError", "Mute"),
    "Reduce(lambda: raising(RecursionError()))": ("ResultError", "deep recursion"),
    "Reduce(lambda: os._exit(4))": ("Died", "exited with status 4"),
    "(i for i in range(3))": ("ResultError", "generator"),
}
#: Exceptions: the expression that a rank raises, its kind, and a part of the message.
RAISED = {
    "Mute()": ("Mute", "its str() raised ValueError"),
    "impatient(Str(lambda: time.sleep(600)))": ("Str", "its str() took longer than"),
    "Str(lambda: sys.exit(0))": ("Str", "its str() raised SystemExit"),
    "Str(lambda: 5)": ("Str", "its str() raised TypeError"),
    "Str(lambda: os._exit(5))": ("Died", "exited with status 5"),
    "noted(ValueError('a'), 5)": ("ValueError", "a"),
    "noted(ValueError('a'), [Mute(), '\\ud800'])": ("ValueError", "a"),
    "Noted('a')": ("Noted", "a"),
    "caused(ValueError('a'), ValueError('b'))": ("ValueError", "a"),
    "chain(5000)": ("ValueError", "0"),
    "nested(200)": ("ExceptionGroup", "nested"),
    "many(10_000)": ("ExceptionGroup", "many"),
    "BaseExceptionGroup('stop', [KeyboardInterrupt(), Quit()])": ("BaseExceptionGroup", "stop"),
    "ValueError('x' * 10**8)": ("ValueError", "xxx"),
    "ValueError('\\ud800')": ("ValueError", ""),
    "ValueError('a\\0b')": ("ValueError", "a\0b"),
    "SystemExit('text')": ("SystemExit", "text"),
    "SystemExit(Odd())": ("SystemExit", ""),
    "KeyboardInterrupt()": ("KeyboardInterrupt", ""),
    "GeneratorExit()": ("GeneratorExit", ""),
    "Quit('bye')": ("Quit", "bye"),
    "Classless('a')": ("Classless", "a"),
    "Causeless('a')": ("Causeless", "a"),
    "Closed('a')": ("Closed", "a"),
}
DEFINITIONS = """
import os, sys, time

def raising(error):
    raise error

class Does:
    def __init__(self, do):
        self.do = do

class Repr:
    def __init__(self, do):
        self.do = do
    def __repr__(self):
        return self.do()
    def __reduce__(self):
        return Repr, (None,)

class Reduce(Does):
    def __reduce__(self):
        return self.do()

class Odd:
    def __eq__(self, other):
        raise ValueError("not comparable")
    def __str__(self):
        raise ValueError("mute")

class Quit(BaseException):
    pass

class Mute(Exception):
    def __str__(self):
        raise ValueError("mute")

class Str(Exception):
    def __str__(self):
        return self.args[0]()

class Noted(Exception):
    @property
    def __notes__(self):
        raise SystemExit("no notes")

class Causeless(Exception):
    @property
    def __cause__(self):
        raise ValueError("no cause")
    @property
    def __traceback__(self):
        raise ValueError("no traceback")

class Closed(Exception):
    def __getattribute__(self, name):
        raise ValueError("closed")

def endless_list():
    made = []
    made.append(made)
    return made

def caused(one, other):
    one.__cause__, other.__cause__ = other, one
    return one

def chain(length):
    last = None
    for number in reversed(range(length)):
        made = ValueError(number)
        made.__cause__, last = last, made
    return last

def many(count):
    return ExceptionGroup("many", [ValueError(number) for number in range(count)])

def nested(depth):
    made = ValueError("innermost")
    for _ in range(depth):
        made = ExceptionGroup("nested", [made])
    return made

def noted(error, notes):
    error.__notes__ = notes
    return error
"""

#: Part of the launched cell, which ranks execute: these classes cannot be sent to ranks.
IN_THE_CELL = """
class Hidden:
    @property
    def __class__(self):
        raise ValueError("hidden")

class Classless(Exception):
    @property
    def __class__(self):
        raise ValueError("no class")

def impatient(error):
    # Twice ten seconds otherwise, on this rank.
    from xla_nb import untrusted as hostile
    hostile.PATIENCE, hostile.words.__defaults__ = 1.0, (1.0,)
    return error

"""


def cell(cases, act):
    """A function in which rank r takes case r."""
    bodies = "".join(f"    if rank == {n}:\n        {act} {case}\n" for n, case in enumerate(cases))
    return f"{IN_THE_CELL}def f(rank):\n{bodies}"


@pytest.fixture(scope="module")
def hostile(kernel):
    kernel.ok(f"import xla_nb\n{DEFINITIONS}")
    return kernel


def outcomes(notebook, run):
    """The kind and the message of each rank's error, or None."""
    assert notebook.value(f"{run}.state.refused") == "None"
    return json.loads(
        notebook.ok(
            f"import json; print(json.dumps([[{run}.errors[r].kind, {run}.errors[r].message]"
            f" if r in {run}.errors else None for r in sorted({run}.state.ranks)]))"
        ).stdout
    )


def check_readable(notebook, run):
    """Check that every view of a run works."""
    notebook.ok(f"repr({run}), {run}.summary(), str(xla_nb.RunFailed({run}))")
    notebook.ok(f"print(xla_nb.RunFailed({run}))")
    notebook.ok("%xla_runs")
    notebook.ok(f"again = xla_nb.open_run({run}.name)\nagain")
    parts = "(r.phase, r.returned and r.returned.preview)"
    alike = f"[{parts} for _, r in sorted({{}}.state.ranks.items())]"
    assert notebook.value(f"{alike.format(run)} == {alike.format('again')}") == "True"
    return notebook.value("sorted(again.results)")


@pytest.mark.parametrize("view", ["panel", pytest.param("text", marks=pytest.mark.slow)])
def test_hostile_results_do_not_affect_other_results(hostile, view):
    hostile.ok(
        f"%%xla_spawn -n {len(RESULTS)} --keep-going --grace 100 --view {view} -o taken\n"
        + cell(RESULTS, "return"),
        timeout=300,
    )
    wrong = []
    for rank, ((case, expected), outcome) in enumerate(
        zip(RESULTS.items(), outcomes(hostile, "taken"), strict=True)
    ):
        if isinstance(expected, str):
            fine = (
                outcome is None
                and hostile.value(f"(lambda it: {expected})(taken[{rank}])") == "True"
            )
        else:
            fine = outcome and outcome[0] == expected[0] and expected[1] in outcome[1]
        if not fine:
            wrong.append((case, expected, outcome))
    assert wrong == []
    whole = [rank for rank, how in enumerate(RESULTS.values()) if isinstance(how, str)]
    assert check_readable(hostile, "taken") == repr(whole)


@pytest.mark.slow
@pytest.mark.parametrize("view", ["panel", "text"])
def test_hostile_exceptions_are_reported_for_their_rank(hostile, view):
    hostile.ok(
        f"%%xla_spawn -n {len(RAISED) + 1} --keep-going --grace 100 --view {view} -o fallen\n"
        + cell(RAISED, "raise")
        + "    return rank",
        timeout=300,
    )
    *found, last = outcomes(hostile, "fallen")
    assert last is None
    wrong = [
        (case, expected, outcome)
        for (case, expected), outcome in zip(RAISED.items(), found, strict=True)
        if not outcome or outcome[0] != expected[0] or expected[1] not in outcome[1]
    ]
    assert wrong == []
    assert check_readable(hostile, "fallen") == repr([len(RAISED)])


def test_result_that_hangs_in_pickling_can_be_stopped(hostile):
    hostile.ok(
        "%%xla_spawn -n 2 --bg -o stuck\n"
        "def f(rank):\n    return Reduce(lambda: print('in', flush=True) or time.sleep(600)) "
        "if rank else rank"
    )
    hostile.ok(
        "while not stuck.output(1) or stuck.state.ranks[0].phase != 'finished': time.sleep(0.01)"
    )
    hostile.ok("stuck.stop()\ntry: stuck.wait(60)\nexcept xla_nb.RunFailed: pass")
    assert hostile.value("[r.phase for _, r in sorted(stuck.state.ranks.items())]") == (
        "['finished', 'stopped']"
    )
    assert hostile.value("stuck.results") == "{0: 0}"


def test_unreadable_result_is_named_and_others_can_be_read(hostile):
    hostile.ok("class Opens:\n    def __setstate__(self, state): raise SystemExit('not here')")
    hostile.ok(
        "%%xla_spawn -n 2 -o opens\ndef f(rank):\n    it = Opens()\n    it.x = 1\n"
        "    return it if rank else rank"
    )
    shown = hostile.run("opens.results")
    assert "Cannot read rank 1's result" in shown.error
    assert "run[RANK]" in shown.error
    assert hostile.value("opens[0]") == "0"


@pytest.mark.parametrize(
    "value",
    [
        "Reduce(lambda: raising(ValueError('no')))",
        "Reduce(lambda: sys.exit(0))",
        "Reduce(lambda: raising(Quit()))",
        "Reduce(lambda: raising(Mute()))",
        "Reduce(lambda: 5)",
    ],
)
def test_hostile_argument_is_refused_by_name(hostile, value):
    hostile.ok(f"argument = {value}")
    launches = [
        "%%xla_spawn -n 1\ndef f(rank): return argument",
        '%%xla_spawn -n 1 --args "(argument,)"\ndef f(rank, it): return it',
    ]
    for cell in launches:
        shown = hostile.run(cell)
        assert shown.ename == "ShippingError", shown.error
        assert "`argument`" in shown.error
