"""Definitions that are the same, or not, by their fingerprints."""

import textwrap

import pytest

from tests.support.python import printed
from xla_nb.pickling.fingerprints import differ, fingerprint

CLASS = """
import dataclasses, functools
@dataclasses.dataclass
class it:
    n: int = 1
    @property
    def p(self): return self.n in {"a", "b", "c", "d"}
    @staticmethod
    def s(x): return lambda: x
    @functools.cached_property
    def c(self): return [self.n for _ in range(3)]
"""


def of(source):
    names = {"__name__": "__main__"}
    exec(textwrap.dedent(source), names)
    return fingerprint(names["it"])


def test_a_definition_that_stands_elsewhere_is_the_same():
    assert of(CLASS) == of("\n\n" + CLASS)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"d"', '"e"'),
        ("lambda: x", "lambda: -x"),
        ("def s(", "def t("),
        ("n: int = 1", "n: int = 1; m: int = 2"),
        ("class it:", "class it(list):"),
    ],
)
def test_a_definition_that_was_edited_is_another(before, after):
    assert differ(of(CLASS), of(CLASS.replace(before, after)))


def test_state_that_a_class_holds_is_not_its_definition():
    assert of("class it: n = 1") == of("class it: n = 2")


def test_definitions_of_different_pythons_are_not_told_apart():
    assert not differ("cpython-311 a", "cpython-312 b")


def test_a_fingerprint_is_the_same_in_another_process():
    script = "from tests.pickling.test_fingerprints import of, CLASS; print(of(CLASS))"
    assert printed(script) == [of(CLASS)]
