"""Which names a statement binds, also to the very object that they have."""

import ast

import pytest

from xla_nb.rank import stores

HELD = [1]


def noted(text, **namespace):
    """The names that are noted when a statement is executed; all are unclaimed."""
    bound: set[str] = set()
    statement, code = compiled(text)
    exec(code, namespace, stores.local_to(statement, code, namespace, set(namespace), bound))
    return bound, namespace


def compiled(text):
    (statement,) = ast.parse(text).body
    return statement, compile(ast.Module([statement], []), "", "exec")


@pytest.mark.parametrize(
    "text",
    [
        "flag = True",
        "flag, other = True, 1",
        "if True:\n    flag = True",
        "for flag in [True]: pass",
        "(flag := True)",
        "import string as flag",
    ],
)
def test_a_name_that_is_given_what_it_has_is_noted(text):
    assert noted(text, flag=True)[0] == {"flag"}


@pytest.mark.parametrize(
    "text", ["if not flag: flag = True", "held += [2]", "for _ in 'ab': held += [2]", "del flag"]
)
def test_a_name_that_is_not_bound_is_not_noted(text):
    assert not noted(text, flag=True, held=HELD)[0]


def test_what_is_bound_is_in_the_namespace_for_functions_and_others():
    bound, namespace = noted("if True:\n    flag = 1\n    seen = (lambda: flag)(), dir()", flag=1)
    assert bound == {"flag"}
    assert namespace["seen"][0] == 1
    assert "flag" in namespace["seen"][1]


def test_a_statement_that_binds_nothing_unclaimed_has_the_namespace_itself():
    namespace = {"mine": 1}
    assert stores.local_to(*compiled("mine = 1"), namespace, set(), set()) is namespace
    assert stores.local_to(*compiled("other = 1"), namespace, {"mine"}, set()) is namespace
