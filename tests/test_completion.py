"""Tab completion in `%%xla` cells."""

from types import SimpleNamespace

import pytest

from xla_nb import live_questions
from xla_nb.rank.introspection import Completions


@pytest.fixture
def replied(monkeypatch):
    def replied(code, fragment="", *names, of_object=True, own=()):
        """Complete at the end of a cell and return the resulting cell texts: ranks offer `names`,
        the kernel itself `own`."""

        def before(code, cursor):
            return {"matches": list(own), "cursor_start": cursor - len(fragment)}

        offered = Completions(fragment, names, of_object)
        monkeypatch.setattr(live_questions, "completions", lambda *_: offered)
        reply = live_questions._completed(before, lambda top: "ranks", code, len(code))
        return [code[: reply["cursor_start"]] + text for text in reply["matches"]]

    return replied


def test_attributes_known_to_ranks_replace_those_of_the_notebook(replied):
    cell = "%%xla\nmodel.we"
    assert replied(cell, "we", "weight", own=["welcome"]) == ["%%xla\nmodel.weight"]


def test_names_of_ranks_are_offered_before_those_of_the_notebook(replied):
    found = replied("%%xla\nmod", "mod", "models", of_object=False, own=["model", "models"])
    assert found == ["%%xla\nmodels", "%%xla\nmodel"]


def test_notebook_completions_are_offered_if_ranks_have_none(replied):
    assert replied("%%xla\nmodel.up", "up", own=["upper"]) == ["%%xla\nmodel.upper"]


@pytest.mark.parametrize(
    ("code", "top", "before"),
    [
        ("%%xla 0\nx = model.we", "%%xla 0", "x = model.we"),
        ("%%time\n%%xla 0\ny = 1\nx = model.we", "%%xla 0", "y = 1\nx = model.we"),
        ("%%xla 0 model.we", None, None),
        ("x = model.we", None, None),
    ],
)
def test_ranks_are_asked_only_inside_their_cells(monkeypatch, code, top, before):
    asked = []
    monkeypatch.setattr(live_questions, "completions", lambda *told: asked.append(told))
    live_questions._completed(lambda *_: {}, str, code + "\nbelow", len(code))
    assert asked == ([(top, before)] if top else [])


def test_turning_on_without_a_kernel_changes_nothing():
    shell = SimpleNamespace()
    live_questions.turn_on(shell, lambda top: None)
    live_questions.turn_off(shell)
