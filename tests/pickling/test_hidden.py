"""Classes that say themselves what their instances' `__class__` and `__dict__` are."""

from __future__ import annotations

import pytest

from xla_nb import untrusted
from xla_nb.errors import ShippingError

CELL = """
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
class Under(Named): pass
Named.live.append(1)
one, other, table, tensor = Proxy(1), Proxy([2]), Proxy({}), Proxy(torch.ones(1))
named, under = Named(5), Under(6)
keep = {named: under}
def f(rank):
    return (
        isinstance(one, int), isinstance(other, list), isinstance(table, dict), other.held,
        isinstance(tensor, torch.Tensor), tensor.held.item(), type(tensor) is Proxy,
        named.n, named.me is named, named.__name__, named.whose() is Named,
        under.n, under.__name__, Under.__name__, Named.__name__,
        keep[named] is under, Named.__mro__[1] is object, Named.__dict__["live"],
    )
"""


def test_they_are_on_a_rank_what_they_are_in_the_notebook(notebook):
    notebook.run(CELL)
    program = notebook.build("def launched(rank): return f(rank)")
    on_a_rank = notebook.rank(program)
    assert on_a_rank == notebook.values["f"](0)
    assert not program.notes


def test_one_whose_dict_is_something_else_is_refused_by_name(notebook):
    notebook.run(
        "class Told:\n    def __init__(self): self.n = 1\n"
        "    __dict__ = property(lambda self: {})\ntold = Told()"
    )
    with pytest.raises(
        ShippingError, match=r"`told` .* a `Told`, whose class says itself what its"
    ):
        notebook.build("def f(rank): return told")


def test_an_object_is_not_asked_for_its_class():
    class Asked:
        @property
        def __class__(self):
            raise AssertionError("the user's code was run")

    made = Asked()
    made.held = 1
    assert untrusted.attributes(made) == {"held": 1}
