"""Results whose classes the notebook defines."""

import os
import sys
import textwrap
import types

import pytest

from tests.support.returned import are_sent
from xla_nb.errors import XlaNbError
from xla_nb.pickling import results
from xla_nb.record.files import Record
from xla_nb.run.recorded import RecordedRun

NET = """
    class Net:
        def __init__(self): self.n = 1
        def twice(self): return 2 * self.n
"""


def made(source):
    """The namespace that a cell defines."""
    names = {"__name__": "__main__"}
    exec(textwrap.dedent(source), names)
    return names


@pytest.fixture
def result(monkeypatch, tmp_path):
    """A file with what a rank returns, evaluated in the namespace of its cell."""

    def result(source, returns):
        main = types.ModuleType("__main__")
        vars(main).update(made(source))
        are_sent(vars(main))
        monkeypatch.setitem(sys.modules, "__main__", main)
        path = tmp_path / "rank-0.result"
        fd = os.open(path, os.O_RDWR | os.O_CREAT)
        try:
            results.pack_home(eval(returns, vars(main))).write(fd)
            return path
        finally:
            os.close(fd)

    return result


def read(path, now):
    """Read the file in a notebook with the namespace `now`."""
    main = vars(sys.modules["__main__"])
    main.clear()
    main.update(now)
    return RecordedRun("r1", "Cell In[3]", Record("/nowhere"))._opened(0, path)


def test_result_uses_the_notebooks_current_class(result):
    now = made(NET)
    assert type(read(result(NET, "Net()"), now)) is now["Net"]


def test_result_of_a_missing_class_suggests_a_fix(result):
    with pytest.raises(XlaNbError, match="needs Net, which the notebook does not define"):
        read(result(NET, "Net()"), {})


SHUT = """
    class Shut:
        def __reduce__(self): return int, ("no number",)
"""


def test_result_that_cannot_be_unpickled_reports_the_exception(result):
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


def test_enum_member_in_a_result_is_the_notebooks(result):
    launch = made(MEMBERS)
    assert read(result(MEMBERS, "Obj.m"), launch) is launch["Obj"].m


ABSENT = """
    class Absent:
        def __reduce__(self): return "ABSENT"
    ABSENT = Absent()
"""


def test_object_pickled_by_name_is_the_notebooks(result):
    launch = made(ABSENT)
    assert read(result(ABSENT, "ABSENT"), launch) is launch["ABSENT"]


def test_unreadable_result_suggests_what_to_return(result):
    with pytest.raises(XlaNbError) as caught:
        read(result(MEMBERS, "[Obj.m, made]"), made(MEMBERS))
    assert str(caught.value) == (
        "Cannot read rank 0's result: ValueError: not so. Return numbers, arrays or CPU tensors "
        "instead."
    )
