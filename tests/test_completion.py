"""What Tab offers behind the magics, asked of a real kernel."""

import builtins
from types import SimpleNamespace

import pytest
from IPython.core import completer
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from tests.support.kernel import Notebook
from xla_nb import completion
from xla_nb.magics import _spawn_parser
from xla_nb.protocol.inspection import Completions, Match
from xla_nb.run.options import OPTIONS, SETTINGS


@pytest.fixture(scope="module")
def offered():
    """Asks the kernel what fits at the end of a line."""
    kernel = Notebook()
    kernel.ok("%load_ext xla_nb")
    kernel.ok("%reload_ext xla_nb")

    def offered(line, below=""):
        kernel.client.complete(line + below, len(line))
        reply = kernel.client.get_shell_msg(timeout=60)
        while reply["msg_type"] != "complete_reply":
            reply = kernel.client.get_shell_msg(timeout=60)
        return reply["content"]["matches"]

    yield offered
    kernel.close()


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
        ("%xla_topology --d", ["--dry-run"]),
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
    assert completion._flags(_spawn_parser(), "%%xla_spawn --timeout ", "") == []
    assert completion._flags(_spawn_parser(), "%%xla_spawn --keep-going ", "") != []


def _at(line):
    return SimpleNamespace(text_until_cursor=line, symbol=line.rpartition(" ")[2])


def test_an_ipython_without_matchers_offers_them_too(monkeypatch):
    real = builtins.__import__

    def older(name, globals=None, locals=None, fromlist=(), level=0):
        if "context_matcher" in (fromlist or ()):
            raise ImportError(name)
        return real(name, globals, locals, fromlist, level)

    shell = InteractiveShell(config=Config({"HistoryManager": {"enabled": False}}))
    monkeypatch.setattr(builtins, "__import__", older)
    completion.turn_on(shell, [])
    completion.turn_on(shell, [])
    (offers,) = shell.strdispatchers["complete_command"].s_matches("%xla_config")
    assert offers(_at("%xla_config dropin=")) == ["on", "off"]
    assert offers(_at("%xla_config")) == []


# ---------------------------------------------------------------- what ranks offer


def of_ranks(text, fragment, *names, knows=True, closing="", after=""):
    """The cell with each completion behind `text`, in a shell with a matcher that answers this."""
    if not hasattr(completer, "context_matcher"):
        pytest.skip("IPython before 8.6 has no matchers")
    offered = Completions(fragment, tuple(Match(n, "instance") for n in names), knows, closing)

    @completer.context_matcher(identifier="of_ranks")
    def matcher(context):
        return completion.of_ranks(offered, after)

    shell = InteractiveShell(config=Config({"HistoryManager": {"enabled": False}}))
    shell.Completer.use_jedi = False
    shell.Completer.custom_matchers.append(matcher)
    shell.user_ns["model"] = "a text"
    with completer.provisionalcompleter():
        found = list(shell.Completer.completions(text + after, len(text)))
    return {text[: one.start] + one.text + (text + after)[one.end :] for one in found}


def test_attributes_that_ranks_know_come_instead_of_the_notebooks():
    assert of_ranks("model.", "", "weight", "bias") == {"model.weight", "model.bias"}
    assert of_ranks("f(model.we", "we", "weight") == {"f(model.weight"}


def test_of_an_object_that_ranks_know_the_notebooks_attributes_are_not_offered():
    assert of_ranks("model.upp", "upp") == {"model.upp"}


def test_names_of_ranks_stand_beside_the_notebooks():
    found = of_ranks("mod", "mod", "models", knows=False)
    assert {"model", "models"} <= found


@pytest.mark.parametrize("after", ["", '"]', "]", '"'])
def test_a_key_is_ended_once(after):
    found = of_ranks('d["ke', "ke", "key", closing='"]', after=after)
    assert found == {'d["key"]' if after != '"' else 'd["key"'}


def test_words_for_older_ipython_begin_with_what_is_typed():
    offered = Completions("we", (Match("weight", "instance"),), True)
    assert completion.words_of_ranks(offered, "model.we") == ["model.weight"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("%%xla 0\nx = model.we", ["model.weight"]),
        ("%%time\n%%xla 0\nx = model.we", ["model.weight"]),
        ("%%xla 0 model.we", []),
        ("x = model.we", []),
    ],
)
def test_older_ipython_has_what_ranks_offer_inside_their_cells_only(text, found):
    asked = []

    def ranks_offer(line, before):
        asked.append((line, before))
        return Completions("we", (Match("weight", "instance"),), True)

    completer = SimpleNamespace(custom_matchers=[])
    completer.completions = lambda text, offset: completer.custom_matchers[0]("model.we")
    for _ in range(2):  # the extension is loaded again
        completion._turn_on_in_cells(completer, ranks_offer)
    assert completer.completions(text, len(text)) == found
    assert len(completer.custom_matchers) == 1
    assert asked == ([("%%xla 0", "x = model.we")] if found else [])
