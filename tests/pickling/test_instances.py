"""Instances of the notebook's classes keep class and attributes, whatever their base pickles, or
are refused."""

from __future__ import annotations

import textwrap

import pytest

from xla_nb.errors import ShippingError

#: Each is true on a rank, of what the notebook has executed.
ON_RANKS = {
    "NumPy's arrays": (
        "class Rows(np.ndarray): pass\nrows = np.ones(2).view(Rows)",
        "type(rows) is Rows and list(rows) == [1, 1]",
    ),
    "Python's generators": (
        "import random\nclass R(random.Random): tag = 'class'\nr = R(1)\n"
        "expected = random.Random(1).random()",
        "type(r) is R and r.random() == expected",
    ),
    **{
        f"an __init__ for {base} of its own": (
            "import datetime, decimal, fractions, pathlib\ncalls = []\n"
            f"class Own({base}):\n    def __init__(self, *args): calls.append(args)\n"
            f"made = Own({arguments}); plain = {base}({arguments})",
            "type(made) is Own and made == plain and len(calls) == 1",
        )
        for base, arguments in {
            "frozenset": "(1, 2)",
            "fractions.Fraction": "1, 3",
            "decimal.Decimal": "'1.5'",
            "datetime.date": "2020, 1, 2",
            "datetime.datetime": "2020, 1, 2",
            "datetime.timedelta": "3",
        }.items()
    },
    "an __init__ for paths": (
        "import pathlib, sys\n"
        "class Own(type(pathlib.Path())):\n"
        "    def __init__(self, *args):\n"
        "        if sys.version_info >= (3, 12): super().__init__(*args)\n"
        "made = Own('a', 'b')",
        "type(made) is Own and str(made) == 'a/b'",
    ),
}


@pytest.mark.parametrize(("made", "is_so"), ON_RANKS.values(), ids=ON_RANKS)
def test_a_rank_has_the_class(notebook, made, is_so):
    notebook.run(f"import numpy as np\n{made}")
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


def test_what_the_base_leaves_out_of_its_own_is_left_out(notebook, local):
    (local / "library.py").write_text(LIBRARY)
    notebook.run("import library\nclass Mine(library.Base): pass\nmine = Mine()")
    assert notebook.launch("def f(rank): return mine.value, type(mine) is Mine") == (1, True)


#: What their bases' pickles lack.
LOST = {
    "NumPy's scalars": ("class M(np.float64): pass\nmade = M(2.5)", "class `M`"),
    "NumPy's generators": (
        "class M(np.random.Generator): pass\nmade = M(np.random.PCG64(1))",
        "class `M`",
    ),
    "an array's attribute": (
        "class M(np.ndarray): pass\nmade = np.ones(2).view(M)\nmade.unit = 'm'",
        "attribute `unit`",
    ),
    "that of a date": (
        "class M(datetime.date): pass\nmade = M(2020, 1, 2)\nmade.tag = 'x'",
        "attribute `tag`",
    ),
    "a slot": (
        "class M(datetime.date): __slots__ = ('name',)\nmade = M(2020, 1, 2)\nmade.name = 'x'",
        "attribute `name`",
    ),
    "that of a number": (
        "class M(decimal.Decimal): pass\nmade = M('1.5')\nmade.tag = 'x'",
        "attribute `tag`",
    ),
    "that of Python's generators": (
        "class M(random.Random): pass\nmade = M(1)\nmade.tag = 'x'",
        "attribute `tag`",
    ),
    "that of a library's class": (
        "class M(library.Base): pass\nmade = M()\nmade.tag = 'x'",
        "attribute `tag`",
    ),
}


@pytest.mark.parametrize(("cell", "lost"), LOST.values(), ids=LOST)
def test_what_a_base_leaves_out_of_the_notebooks_is_refused(notebook, local, cell, lost):
    (local / "library.py").write_text(LIBRARY)
    notebook.run("import datetime, decimal, random, library\nimport numpy as np\n" + cell)
    with pytest.raises(ShippingError, match=f"`made` .* pickles without its {lost}. Give `M` a"):
        notebook.build("def f(rank): return made")


@pytest.mark.parametrize(
    "method", ["", "    def __new__(cls, value): return super().__new__(cls)\n"]
)
def test_a_base_that_leaves_to_its_subclasses_how_they_are_made(notebook, local, method):
    (local / "library.py").write_text(LIBRARY)
    notebook.run(
        f"import library\nclass Mine(library.Mixin):\n{method}"
        "    def __init__(self, value): self.value = value\nmine = Mine(3)"
    )
    assert notebook.launch("def f(rank): return mine.value, type(mine) is Mine") == (3, True)


def test_what_the_base_makes_of_its_own_class_is_refused(notebook, local):
    (local / "library.py").write_text(LIBRARY)
    notebook.run("import library\nclass Mine(library.Lost): pass\nmine = Mine()")
    with pytest.raises(ShippingError, match=r"`library\.Lost` pickles without its class `Mine`"):
        notebook.build(textwrap.dedent("def f(rank): return mine"))
