"""Instances of the notebook's classes keep class and attributes, whatever their base pickles."""

from __future__ import annotations

import textwrap

import pytest

from tests.support.notebook_double import importable_folder, opened
from xla_nb.errors import ShippingError

notebook = pytest.fixture(opened)
local = pytest.fixture(importable_folder)

#: Each is true on a rank, of what the notebook has executed.
ON_RANKS = {
    "NumPy's floats": (
        "class Money(np.float64):\n    def __add__(self, other): return 'money'\n"
        "m = Money(2.5)\nm.unit = 'm'",
        "m + 1 == 'money' and m.unit == 'm' and type(m) is Money and float(m) == 2.5",
    ),
    "NumPy's integers and text": (
        "class Int(np.int64): pass\nclass Text(np.str_): pass\nn, t = Int(7), Text('abc')\n"
        "n.of = t",
        "type(n) is Int and type(t) is Text and n == 7 and t == 'abc' and n.of is t",
    ),
    "NumPy's generators": (
        "class Fixed(np.random.Generator):\n    def random(self, *a): return 4\n"
        "class Old(np.random.RandomState):\n    def random(self, *a): return 4\n"
        "g, o = Fixed(np.random.PCG64(1)), Old(5)\ng.tag, o.tag = 'g', 'o'\n"
        "next_g = np.random.default_rng(1).normal()\nnext_o = np.random.RandomState(5).normal()",
        "(g.random(), o.random(), g.tag, o.tag) == (4, 4, 'g', 'o') "
        "and g.normal() == next_g and o.normal() == next_o",
    ),
    "Python's generators": (
        "import random\nclass R(random.Random): tag = 'class'\n"
        "r = R(1)\nr.tag, r.more = 'mine', [r]\n"
        "expected = random.Random(1).random()",
        "r.tag == 'mine' and r.more[0] is r and r.random() == expected",
    ),
    "slots": (
        "import datetime\nclass Day(datetime.date): __slots__ = ('name',)\n"
        "d = Day(2020, 1, 2)\nd.name = 'x'",
        "type(d) is Day and d.name == 'x' and d.day == 2",
    ),
    **{
        f"an __init__ for {base} of its own": (
            "import datetime, decimal, fractions, pathlib\n"
            f"class Own({base}):\n    def __init__(self, *args): self.tag = args\n"
            f"made = Own({arguments}); plain = {base}({arguments})",
            f"type(made) is Own and made == plain and made.tag == ({arguments},)",
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
        "        self.tag = args\n"
        "made = Own('a', 'b')",
        "type(made) is Own and str(made) == 'a/b' and made.tag == ('a', 'b')",
    ),
}


@pytest.mark.parametrize(("made", "is_so"), ON_RANKS.values(), ids=ON_RANKS)
def test_a_rank_has_the_class_and_the_attributes(notebook, made, is_so):
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
    notebook.run("import library\nclass Mine(library.Base): pass\nmine = Mine()\nmine.tag = 'm'")
    assert notebook.launch("def f(rank): return mine.tag, type(mine) is Mine") == ("m", True)


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
