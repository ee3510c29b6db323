"""Results of the notebook's classes."""

import os
import sys
import textwrap
import types

import pytest

from tests.support.returned import are_sent
from xla_nb.errors import XlaNbError
from xla_nb.pickling import results
from xla_nb.pickling.parcel import Parcel
from xla_nb.record.files import Record
from xla_nb.run.recorded import RecordedRun

NET = """
    class Net:
        def __init__(self): self.n = 1
        def twice(self): return 2 * self.n
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
        are_sent(vars(main))
        monkeypatch.setitem(sys.modules, "__main__", main)
        fd = os.memfd_create("home")
        try:
            results.pack_home(eval(returns, vars(main))).write(fd)
            return Parcel(fd)
        finally:
            os.close(fd)

    return result


def read(parcel, now):
    """It, in a notebook that has this."""
    main = vars(sys.modules["__main__"])
    main.clear()
    main.update(now)
    return RecordedRun("r1", "Cell In[3]", Record("/nowhere"))._opened(0, parcel)


def test_a_result_is_of_the_class_that_is_found(result):
    now = made(NET)
    assert type(read(result(NET, "Net()"), now)) is now["Net"]


def test_a_result_whose_class_is_gone_says_what_to_do(result):
    with pytest.raises(XlaNbError, match="needs Net, which the notebook does not define"):
        read(result(NET, "Net()"), {})


SHUT = """
    class Shut:
        def __reduce__(self): return int, ("no number",)
"""


def test_a_result_that_cannot_be_opened_says_what_was_raised(result):
    with pytest.raises(XlaNbError, match="Cannot read rank 0's result: ValueError: invalid"):
        read(result(SHUT, "Shut()"), made(SHUT))


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


ABSENT = """
    class Absent:
        def __reduce__(self): return "ABSENT"
    ABSENT = Absent()
"""


def test_an_object_that_is_pickled_by_its_name_is_the_notebooks(result):
    launch = made(ABSENT)
    assert read(result(ABSENT, "ABSENT"), launch) is launch["ABSENT"]


def test_what_cannot_be_read_is_told_with_what_to_return(result):
    with pytest.raises(XlaNbError) as caught:
        read(result(MEMBERS, "[Obj.m, made]"), made(MEMBERS))
    assert str(caught.value) == (
        "Cannot read rank 0's result: ValueError: not so. Return numbers, arrays or CPU tensors "
        "instead."
    )
