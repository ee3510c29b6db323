"""Instances of notebook classes behave on ranks as in the notebook, however their base pickles them
and whatever their class claims to be, or are refused."""

import pytest

from xla_nb.errors import ShippingError

#: Notebook cell, and an expression that must be true on a rank.
ON_RANKS = {
    "a NumPy array": (
        "class Rows(np.ndarray): pass\nrows = np.ones(2).view(Rows)",
        "type(rows) is Rows and list(rows) == [1, 1]",
    ),
    "a random generator": (
        "class R(random.Random): tag = 'class'\nr = R(1)\nexpected = random.Random(1).random()",
        "type(r) is R and r.random() == expected",
    ),
    **{
        f"a subclass of {base} with its own __init__": (
            f"calls = []\nclass Own({base}):\n    def __init__(self, *args): calls.append(args)\n"
            f"made = Own({arguments}); plain = {base}({arguments})",
            "type(made) is Own and made == plain and len(calls) == 1",
        )
        for base, arguments in {
            "frozenset": "(1, 2)",
            "fractions.Fraction": "1, 3",
            "datetime.date": "2020, 1, 2",
        }.items()
    },
    "a subclass of Path with its own __init__": (
        "class Own(type(pathlib.Path())):\n    def __init__(self, *args):\n"
        "        if sys.version_info >= (3, 12): super().__init__(*args)\nmade = Own('a', 'b')",
        "type(made) is Own and str(made) == 'a/b'",
    ),
}


@pytest.mark.parametrize(("made", "is_so"), ON_RANKS.values(), ids=ON_RANKS)
def test_instances_keep_their_class_on_ranks(notebook, made, is_so):
    notebook.run("import datetime, fractions, pathlib, random, sys, numpy as np")
    notebook.run(made)
    assert notebook.launch(f"def f(rank): return bool({is_so})")


LIBRARY = """
import threading
class Base:
    def __init__(self): self.lock, self.value = threading.Lock(), 1
    def __reduce__(self): return type(self), ()
class Lost(Base):
    def __reduce__(self): return Lost, ()
class Mixin:
    def __reduce__(self): return type(self), (self.value,)
"""


@pytest.fixture
def library(local):
    (local / "library.py").write_text(LIBRARY)


TAKES = "\n    def __init__(self, value): self.value = value\nmine = Mine(3)"


@pytest.mark.parametrize(
    ("mine", "value"),
    [
        ("class Mine(library.Base): pass\nmine = Mine()", 1),
        ("class Mine(library.Mixin):" + TAKES, 3),
        (
            "class Mine(library.Mixin):\n    def __new__(cls, value): return super().__new__(cls)"
            + TAKES,
            3,
        ),
    ],
    ids=["without arguments", "arguments for __init__", "arguments for __new__"],
)
def test_library_base_reduce_recreates_notebook_subclasses(notebook, library, mine, value):
    notebook.run(f"import library\n{mine}")
    assert notebook.launch("def f(rank): return mine.value, type(mine) is Mine") == (value, True)


#: Notebook cell, and what the base's pickle lacks.
LOST = {
    "a NumPy scalar": ("class M(np.float64): pass\nmade = M(2.5)", "class `M`"),
    "an array's attribute": (
        "class M(np.ndarray): pass\nmade = np.ones(2).view(M)\nmade.unit = 'm'",
        "attribute `unit`",
    ),
    "a date's slot": (
        "class M(datetime.date): __slots__ = ('name',)\nmade = M(2020, 1, 2)\nmade.name = 'x'",
        "attribute `name`",
    ),
    "the class, replaced by a library's own": (
        "class M(library.Lost): pass\nmade = M()",
        "class `M`",
    ),
    "an attribute unknown to a library's class": (
        "class M(library.Base): pass\nmade = M()\nmade.tag = 'x'",
        "attribute `tag`",
    ),
}


@pytest.mark.parametrize(("cell", "lost"), LOST.values(), ids=LOST)
def test_instance_is_refused_if_its_base_pickles_without_its_state(notebook, library, cell, lost):
    notebook.run("import datetime, library\nimport numpy as np\n" + cell)
    with pytest.raises(ShippingError, match=f"`made` .* pickles without its {lost}. Give `M` a"):
        notebook.build("def f(rank): return made")


#: Instances with the properties `__class__` and `__name__`.
HIDDEN = """
import torch
class Proxy:
    def __init__(self, held): self.held = held
    @property
    def __class__(self): return type(self.held)
class Named:
    live = []
    def __init__(self, n): self.n, self.me = n, self
    __name__ = property(lambda self: f"named {self.n}")
    def whose(self): return __class__
class Asked:
    @property
    def __class__(self): raise AssertionError("the user's code was run")
asked = Asked()
asked.held = 1
Named.live.append(1)
one, other, tensor = Proxy(1), Proxy([2]), Proxy(torch.ones(1))
named = Named(5)
keep = {named: [named]}
def f(rank):
    return (
        isinstance(one, int), isinstance(other, list), other.held, asked.held,
        isinstance(tensor, torch.Tensor), tensor.held.item(), type(tensor) is Proxy,
        named.n, named.me is named, named.__name__, named.whose() is Named, Named.__name__,
        keep[named] == [named], Named.__mro__[1] is object, Named.__dict__["live"],
    )
"""


def test_instances_with_class_and_name_properties_are_sent_unchanged(notebook):
    notebook.run(HIDDEN)
    program = notebook.build("def launched(rank): return f(rank)")
    assert (notebook.rank(program), program.notes) == (notebook.values["f"](0), ())
