"""Errors with messages that mislead on ranks get a note with the fix."""

import bdb

import pytest

from xla_nb.program.module_file import ModuleMap
from xla_nb.rank import loader, process

CUDA = "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you must"


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (bdb.BdbQuit(), "breakpoint() and pdb exit at once"),
        (RuntimeError(f"{CUDA} use the 'spawn' start method"), 'Use torch_xla.device() or "xla"'),
    ],
)
def test_advice_is_added_as_a_note(error, words):
    process._advise(error)
    (note,) = error.__notes__
    assert words in note


@pytest.mark.parametrize("error", [RuntimeError("CUDA"), KeyError("BdbQuit")])
def test_other_errors_get_no_note(error):
    process._advise(error)
    assert not hasattr(error, "__notes__")


def test_error_that_refuses_notes_is_left_alone():
    asked = []

    def add_note(self, note):
        asked.append(note)
        raise ValueError

    names = {"__module__": "builtins", "add_note": add_note}
    process._advise(type("RuntimeError", (Exception,), names)(CUDA))
    assert len(asked) == 1


@pytest.mark.parametrize("call", ["globals()['Net']", "eval('Net')"])
def test_failed_lookup_of_a_name_by_text_gets_advice(call):
    with pytest.raises((KeyError, NameError)) as caught:
        eval(call, {})
    process._advise(caught.value)
    (note,) = caught.value.__notes__
    assert "mention it in the function that looks it up" in note


def test_missing_dict_key_gets_no_advice():
    with pytest.raises(KeyError) as caught:
        {}["Net"]
    process._advise(caught.value)
    assert not hasattr(caught.value, "__notes__")


def test_ranks_show_advice_for_names_mentioned_only_in_data(notebook):
    notebook.ok("class Scaled: pass\ndef made(name): return globals()[name]()")
    notebook.ok("scaled_by = {'model': 'Scaled'}")
    shown = notebook.run("%%xla_spawn -n 2\ndef f(rank): return made(scaled_by['model'])")
    assert "KeyError: 'Scaled'" in shown.error
    assert "mention it in the function that looks it up" in shown.result


def test_ranks_show_advice(notebook):
    shown = notebook.run("%%xla_spawn -n 2\ndef f(rank):\n    breakpoint()\n    return rank")
    assert " at Cell In[" in shown.error
    assert "breakpoint() and pdb exit at once" in shown.result


def test_undefined_name_in_the_cell_itself_gets_no_advice():
    table = ModuleMap({}, "Cell In[1]", 0, body="lenght")
    with pytest.raises(NameError) as caught:
        loader.run_body(table, {})
    process._advise(caught.value)
    assert not hasattr(caught.value, "__notes__")
