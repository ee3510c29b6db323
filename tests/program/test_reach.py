"""Which names functions use that are found in what other objects hold."""

import collections
import functools
import threading
import types

import pytest

from xla_nb.program.reach import names_used_by


class _Slotted:
    __slots__ = ("call",)

    def __init__(self, call):
        self.call = call


def _class_with(method, base):
    """A class of the notebook."""
    return type("Own", (base,), {"__module__": "__main__", "method": method})


HOLDERS = {
    "a list": lambda f: [f],
    "a dictionary": lambda f: {"f": f},
    "a set": lambda f: {f},
    "a queue": lambda f: collections.deque([f]),
    "a namespace": lambda f: types.SimpleNamespace(f=f),
    "a dictionary of a library": lambda f: collections.UserDict(f=f),
    "a view of a dictionary": lambda f: types.MappingProxyType({"f": f}),
    "a partial call": lambda f: functools.partial(f, 1),
    "an iterator": lambda f: map(f, [1]),
    "a timer": lambda f: threading.Timer(1, f),
    "a dictionary that makes what it lacks": collections.defaultdict,
    "the class of a dictionary": lambda f: _class_with(f, dict)(),
    "the class of a list": lambda f: _class_with(f, list)(),
    "the class of a tuple": lambda f: _class_with(f, tuple)(),
    "a metaclass": lambda f: _class_with(f, type)("Made", (), {}),
    "slots": _Slotted,
    "an object in objects": lambda f: types.SimpleNamespace(deep=[_Slotted({"f": f})]),
}


@pytest.fixture
def function():
    """A function of the notebook that uses `scale`."""
    namespace = {"__name__": "__main__"}
    exec("def f(x=0): return x * scale", namespace)
    return namespace["f"]


@pytest.mark.parametrize("holder", HOLDERS.values(), ids=HOLDERS.keys())
def test_the_names_of_a_function_are_found_in(holder, function):
    assert "scale" in names_used_by({"held": holder(function)}, ["held"])


def test_modules_are_not_searched(function):
    module = types.ModuleType("library")
    module.f = function
    assert names_used_by({"held": [module]}, ["held"]) == set()


def test_a_great_many_objects_are_not_searched_to_the_end(function):
    many = [[n] for n in range(100_000)]
    assert names_used_by({"held": [*many, function]}, ["held"]) <= {"scale"}


def test_a_run_is_not_searched_for_what_its_function_uses():
    namespace = {}
    exec("def f(): return lock", namespace | {"__name__": "__main__"}, namespace)
    run = type("Run", (), {"__module__": "xla_nb.run.run"})()
    run.entry = namespace["f"]
    assert names_used_by({"r": run}, {"r"}) == set()
