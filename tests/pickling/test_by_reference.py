"""What is sent by its name: modules of every class, and what torch has names for."""

import contextvars
import sys

import pytest

from tests.support.returned import returned
from xla_nb.errors import ShippingError

#: What each is, in the notebook and on a rank.
OF_TORCH = [
    "torch.backends.cudnn",
    "torch.backends",
    "torch.utils.deterministic",
    "torch.fx.experimental._config",
    "torch.ops",
    "torch.ops.aten",
    "torch.channels_last",
]


@pytest.mark.parametrize("name", OF_TORCH)
def test_a_value_that_torch_has_under_a_name_is_that(notebook, name):
    notebook.run(f"import torch.fx.experimental._config\nheld = [{name}]")
    assert notebook.launch(f"import torch\ndef f(rank): return held[0] is {name}") is True
    held = notebook.values["held"]
    assert returned(held, notebook.values)[0] is held[0]


def test_limits_of_a_type_are_made_of_the_type(notebook):
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


def test_a_function_that_names_a_module_with_a_class_of_its_own_keeps_its_state(notebook):
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
def test_a_module_of_ones_own_with_another_class_is_the_ranks(notebook, local, way):
    (local / "lazymod.py").write_text(LAZY + way)
    notebook.run("import lazymod\nheld = [lazymod]\ndef g(): return lazymod.get(), lazymod")
    cell = "import lazymod\ndef f(rank): return held[0] is lazymod is g()[1] and held[0].get()"
    assert notebook.launch(cell) == 1
    assert returned(notebook.values["held"], {})[0] is sys.modules["lazymod"]


def test_a_module_that_ranks_cannot_import_is_not_sent_by_its_name(notebook, monkeypatch):
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


def test_a_modules_context_variable_is_that_modules_without_the_notebooks_value(notebook, local):
    (local / "steps.py").write_text(
        "import contextvars\nat = contextvars.ContextVar('at', default=1)\n"
    )
    notebook.run("from steps import at\nimport steps\nat.set(5)")
    program = notebook.build("def f(rank): return at is steps.at, at.get()")
    assert contextvars.Context().run(notebook.rank, program) == (True, 1)
