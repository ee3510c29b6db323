"""Results of classes that the notebook has redefined since the launch."""

import os
import sys
import textwrap
import types

import pytest

from xla_nb.errors import XlaNbError
from xla_nb.pickling import results
from xla_nb.pickling.parcel import Parcel
from xla_nb.run.recorded import Definitions

NET = """
    class Net:
        def __init__(self): self.n = 1
        def twice(self): return 2 * self.n
"""
SLOTS = """
    class Net:
        __slots__ = ("other",)
"""


def made(source):
    """What a cell defines."""
    names = {"__name__": "__main__"}
    exec(textwrap.dedent(source), names)
    return names


@pytest.fixture
def result(monkeypatch):
    """A parcel with what a rank returns, of what its cell defines."""

    def result(source, returns):
        main = types.ModuleType("__main__")
        vars(main).update(made(source))
        monkeypatch.setitem(sys.modules, "__main__", main)
        fd = os.memfd_create("home")
        try:
            defined = set(vars(main))
            results.pack_home(eval(returns, vars(main)), defined).write(fd)
            return Parcel(fd)
        finally:
            os.close(fd)

    return result


def read(parcel, now):
    return Definitions("Cell In[3]", now.__getitem__).read(0, parcel)


def test_a_class_that_was_executed_again_as_it_is_counts_as_the_same(result, capsys):
    now = made("\n\n" + textwrap.dedent(NET))
    assert type(read(result(NET, "Net()"), now)) is now["Net"]
    assert capsys.readouterr().err == ""


def test_a_redefinition_is_told(result, capsys):
    now = made(NET.replace("2 *", "3 *"))
    assert read(result(NET, "Net()"), now).twice() == 3
    assert capsys.readouterr().err == (
        "`Net` was redefined after Cell In[3] was launched; rank 0's result is read with the new "
        "`Net`.\n"
    )


def test_the_same_text_is_not_told(result, capsys):
    read(result(NET, "[Net(), Net.twice]"), made("\n" + textwrap.dedent(NET)))
    assert capsys.readouterr().err == ""


def test_of_a_result_that_no_longer_fits_its_class_the_redefinition_is_told(result):
    told = r"AttributeError: 'Net' object has no .* It needs `Net` as defined when Cell In\[3\] was"
    with pytest.raises(XlaNbError, match=told):
        read(result(NET, "Net()"), made(SLOTS))


def test_a_result_whose_class_is_no_class_any_more_says_what_to_do(result):
    with pytest.raises(XlaNbError, match=r"`Net` now has type int\. Run the cell that defines it"):
        read(result(NET, "Net()"), made("Net = 5"))


def test_a_redefinition_is_told_once_for_all_ranks(result, capsys):
    parcels = [result(NET, "Net()") for _ in range(2)]
    definitions = Definitions("Cell In[3]", made(NET.replace("2 *", "3 *")).__getitem__)
    for rank, parcel in enumerate(parcels):
        definitions.read(rank, parcel)
    assert capsys.readouterr().err.count("redefined") == 1


SHUT = """
    class Shut:
        def __reduce__(self): return int, ("no number",)
"""


def test_a_result_that_cannot_be_opened_says_what_was_raised(result):
    with pytest.raises(XlaNbError, match="Cannot read rank 0's result: ValueError: invalid"):
        read(result(SHUT, "Shut()"), {})


MEMBERS = """
    import enum
    class Obj(enum.Enum):
        m = enum.member(lambda: 3)
    class Bad:
        def __setstate__(self, state): raise ValueError("not so")
    made = Bad()
    made.x = 1
"""


def test_a_member_of_an_enum_is_the_notebooks(result):
    launch = made(MEMBERS)
    assert read(result(MEMBERS, "Obj.m"), launch) is launch["Obj"].m


def test_nobody_is_told_to_run_a_definition_again_that_is_as_it_was(result):
    with pytest.raises(XlaNbError) as caught:
        read(result(MEMBERS, "[Obj.m, made]"), made(MEMBERS))
    assert str(caught.value) == (
        "Cannot read rank 0's result: ValueError: not so. Return numbers, arrays or CPU tensors "
        "instead."
    )
