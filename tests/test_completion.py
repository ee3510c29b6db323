"""What Tab offers behind the magics, asked of a real kernel."""

import builtins
from types import SimpleNamespace

import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from tests.support.kernel import Notebook
from xla_nb import completion
from xla_nb.magics import _spawn_parser
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
        ("%xla_config n=8 setup_cells=s", ["skip"]),
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
