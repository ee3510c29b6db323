"""What Tab offers behind the magics, asked of a real kernel."""

from types import SimpleNamespace

import pytest

from xla_nb import completion, live_questions
from xla_nb.magics import _parser
from xla_nb.rank.introspection import Completions
from xla_nb.run.options import OPTIONS, SETTINGS


@pytest.fixture(scope="module")
def offered(kernel):
    """Asks the kernel what fits at the end of a line."""

    def offered(line, below=""):
        kernel.client.complete(line + below, len(line))
        reply = kernel.client.get_shell_msg(timeout=60)
        while reply["msg_type"] != "complete_reply":
            reply = kernel.client.get_shell_msg(timeout=60)
        return reply["content"]["matches"]

    return offered


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("%%xla_spawn", ["%%xla_spawn"]),
        ("%%xla_spawn --ti", ["--timeout"]),
        ("%%xla_spawn -n 2 --runtime ", ["xla", "spmd", "torchax"]),
        ("%%xla_spawn --view te", ["text"]),
        ("%xla_config dropin=", ["on", "off"]),
        ("%xla_config n=8 guard=of", ["off"]),
        ("%xla_config sim", ["simulate="]),
        ("%xla_topology --sl", ["--slices"]),
    ],
)
def test_behind_a_magic_are_its_words_alone(offered, line, words):
    assert offered(line) == words


def test_all_options_are_offered_above_a_cell(offered):
    flags = [option.flag for option in OPTIONS.values() if option.flag.startswith("--")]
    assert offered("%%xla_spawn --", "\ndef f(rank): pass") == [*flags, "--args"]


def test_all_settings_are_offered(offered):
    assert set(offered("%xla_config ")) > {f"{name}=" for name in SETTINGS}


def test_where_a_value_is_free_nothing_is_offered():
    parser = _parser("%%xla_spawn")
    assert completion._flags(parser, "%%xla_spawn --timeout ", "") == ()
    assert completion._flags(parser, "%%xla_spawn --keep-going ", "")


# ---------------------------------------------------------------- what ranks offer


@pytest.fixture
def replied(monkeypatch):
    def replied(code, fragment="", *names, of_object=True, own=()):
        """What a kernel replies at the end of a cell whose ranks offer these, as the texts of the
        cell; it has `own` itself."""

        def before(code, cursor):
            return {"matches": list(own), "cursor_start": cursor - len(fragment)}

        offered = Completions(fragment, names, of_object)
        monkeypatch.setattr(live_questions, "completions", lambda *_: offered)
        reply = completion._completed(before, {}, lambda top: "ranks", code, len(code))
        return [code[: reply["cursor_start"]] + text for text in reply["matches"]]

    return replied


def test_attributes_that_ranks_know_come_instead_of_the_notebooks(replied):
    cell = "%%xla\nmodel.we"
    assert replied(cell, "we", "weight", own=["welcome"]) == ["%%xla\nmodel.weight"]


def test_names_of_ranks_stand_beside_the_notebooks(replied):
    found = replied("%%xla\nmod", "mod", "models", of_object=False, own=["model", "models"])
    assert found == ["%%xla\nmodels", "%%xla\nmodel"]


def test_where_ranks_offer_nothing_the_notebooks_are_offered(replied):
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
def test_ranks_are_asked_inside_their_cells_only(monkeypatch, code, top, before):
    asked = []
    monkeypatch.setattr(live_questions, "completions", lambda *told: asked.append(told))
    completion._completed(lambda *_: {}, {}, str, code + "\nbelow", len(code))
    assert asked == ([(top, before)] if top else [])


def test_without_a_kernel_nothing_is_changed():
    shell = SimpleNamespace()
    completion.turn_on(shell, {}, lambda top: None)
    completion.turn_off(shell)
