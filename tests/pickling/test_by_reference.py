"""Values sent by name: modules of every class, values with a name in torch, and loggers, which keep
everything except their handlers."""

import contextvars
import logging
import sys
import types

import pytest

from tests.support.returned import returned
from xla_nb.errors import ShippingError

OF_TORCH = [
    *("torch.backends.cudnn", "torch.backends", "torch.utils.deterministic", "torch.ops"),
    *("torch.fx.experimental._config", "torch.ops.aten", "torch.channels_last"),
]


def test_values_named_in_torch_keep_their_identity(notebook):
    notebook.run(f"import torch.fx.experimental._config\nheld = [{', '.join(OF_TORCH)}]")
    same = ", ".join(f"held[{n}] is {name}" for n, name in enumerate(OF_TORCH))
    assert notebook.launch(f"import torch\ndef f(rank): return {same}") == (True,) * len(OF_TORCH)
    held = notebook.values["held"]
    assert [*map(id, returned(held, notebook.values))] == [*map(id, held)]


def test_finfo_and_iinfo_are_recreated_from_their_dtype(notebook):
    notebook.run("import torch\nheld = [torch.finfo(torch.bfloat16), torch.iinfo(torch.int8)]")
    assert notebook.launch("def f(rank): return held[0].eps, held[1].max") == (0.0078125, 127)
    eps, most = returned(notebook.values["held"], notebook.values)
    assert (eps.eps, most.max) == (0.0078125, 127)


SEEDER = """
import torch
def made():
    calls = []
    def seed(n):
        torch.backends.cudnn.deterministic = torch.backends.cudnn.deterministic
        calls.append(n)
        return calls
    return seed
seed = made()
seed(1)
"""


def test_function_that_uses_a_module_with_its_own_class_keeps_its_state(notebook):
    notebook.run(SEEDER)
    program = notebook.build("def f(rank): return seed(2)")
    assert not program.notes
    assert notebook.rank(program) == [1, 2]
    assert returned([notebook.values["seed"]], {})[0](2) == [1, 2]


LAZY = """
import sys, types
class Lazy(types.ModuleType):
    def __getattr__(self, name): return [name]
    def __reduce__(self): return Lazy, (self.__name__,)
value = 1
def get(): return value
"""
IN_PLACE = "sys.modules[__name__].__class__ = Lazy"
INSTEAD = """
made = Lazy(__name__)
made.get = get
sys.modules[__name__] = made
"""


@pytest.mark.parametrize("way", [IN_PLACE, INSTEAD, INSTEAD + "made.__name__ = 'another'"])
def test_own_module_with_a_custom_class_is_the_ranks_module(notebook, local, way):
    (local / "lazymod.py").write_text(LAZY + way)
    notebook.run("import lazymod\nheld = [lazymod]\ndef g(): return lazymod.get(), lazymod")
    cell = "import lazymod\ndef f(rank): return held[0] is lazymod is g()[1] and held[0].get()"
    assert notebook.launch(cell) == 1
    assert returned(notebook.values["held"], {})[0] is sys.modules["lazymod"]


def test_module_that_ranks_cannot_import_is_not_sent_by_name(notebook, monkeypatch):
    monkeypatch.setitem(sys.modules, "made_here", None)
    notebook.run(
        """
        import sys, types
        class Config(types.ModuleType): pass
        sys.modules["made_here"] = config = Config("made_here")
        plain = types.ModuleType("made_there"); plain.rate = 3
        held, kept = [config], [plain]
        """
    )
    with pytest.raises(ShippingError, match="`held\\[0\\]`: cannot pickle 'Config' object"):
        notebook.build("def f(rank): return held")
    assert notebook.launch("def f(rank): return kept[0].rate") == 3


def test_note_reports_values_of_one_thread_that_modules_hold(notebook, local):
    (local / "steps.py").write_text(
        "import contextvars, threading\nat = contextvars.ContextVar('at', default=1)\n"
        "of_thread, empty = threading.local(), threading.local()\n"
        "def told(): return at.get(), of_thread, empty\n"
    )
    notebook.run("from steps import at\nimport steps")
    cell = "def f(rank): return at is steps.at, at.get(), steps.told()[0]"
    program = notebook.build(cell)
    assert not program.notes
    notebook.run("at.set(5); steps.of_thread.x = 1")
    program = notebook.build(cell)
    assert contextvars.Context().run(notebook.rank, program) == (True, 1, 1)
    assert program.notes == tuple(
        f"ranks use `steps.{name}` as `import steps` creates it: its value in the notebook cannot "
        "be sent"
        for name in ("at", "of_thread")
    )


APP = "xla_nb_test_app"
MADE = f"""
import logging
lg = logging.getLogger("{APP}")
"""


@pytest.fixture(autouse=True)
def forget():
    """Removes the test's loggers from this process, as in a new rank."""

    def forget():
        known = logging.root.manager.loggerDict
        for name in [name for name in known if name.startswith(APP)]:
            del known[name]

    yield forget
    forget()


LOGGERS = f"""{MADE}
lg.addHandler(logging.NullHandler())
lg.isEnabledFor(15); lg.setLevel(15)
root, child, quiet = map(logging.getLogger, (None, "{APP}.child", "{APP}.quiet"))
quiet.propagate, quiet.disabled = False, True
"""
ON_RANKS = """
def f(rank):
    level = lg.level, lg.isEnabledFor(14), lg.isEnabledFor(15), lg.handlers
    place = lg is logging.getLogger(lg.name) and child.parent is lg and lg.parent is logging.root
    return level, place, root is logging.root, quiet.propagate, quiet.disabled
"""


def test_ranks_get_notebook_loggers_in_their_hierarchy_without_handlers(notebook, forget):
    notebook.run(LOGGERS)
    program = notebook.build(ON_RANKS)
    forget()
    assert notebook.rank(program) == ((15, False, True, []), True, True, False, True)


def test_note_reports_logger_output_lost_without_handlers(notebook, monkeypatch):
    cell = "def f(rank): lg.info('')"
    notebook.run(MADE + "lg.propagate = False")
    assert not notebook.build(cell).notes
    notebook.run("lg.addHandler(logging.NullHandler())")
    assert notebook.build(cell).notes == (
        f"logger `{APP}` has no handlers on ranks and does not propagate: add a handler inside the "
        "function",
    )
    notebook.run("lg.handlers[:] = [logging.StreamHandler()]")
    monkeypatch.setitem(sys.modules, APP, types.ModuleType(APP))  # it adds a handler there
    assert notebook.build(cell).notes == ()
