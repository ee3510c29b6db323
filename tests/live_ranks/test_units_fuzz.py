"""Random programs on small object graphs: after each cell, a rank's graph matches the notebook's.

Both sides are compared as graphs: names that share an object in the notebook must share one on the
rank, and definitions must keep their identity there.
"""

from __future__ import annotations

import functools
import random
import types
from collections.abc import Iterator
from typing import Any

import numpy
import pytest

from tests.support.live_ranks import LiveNotebook, opened_live

notebook = pytest.fixture(opened_live)

_CLASSES, _FUNCTIONS, _VALUES = ("A", "B"), ("f", "g", "h"), ("u", "v", "w", "x", "y", "z")
_PLAIN = (int, float, str, bytes, bool, type(None))

#: Statements and the types they apply to; () means instances of notebook classes.
_DONE: list[tuple[str, tuple[type, ...]]] = [
    ("{name} = {name}.copy()", (list, dict, numpy.ndarray)),
    ("del {name}", (object,)),
    ("{name}.append({value})", (list,)),
    ("{name}.pop() if {name} else None", (list,)),
    ("{name}[{key!r}] = {value}", (dict,)),
    ("{name}.{attribute} = {value}", ()),
    ("{name}[{n}] += 1", (numpy.ndarray,)),
    ("{name}.{member} = {value}", (type,)),
    ("{name}.note = {value}", (types.FunctionType,)),
]
_PICKED = {"key": "abc", "attribute": "pq", "n": "01", "member": "nm"}


class _Steps:
    """Random statements that use existing names."""

    def __init__(self, seed: int) -> None:
        self.pick = random.Random(seed)

    def statement(self, held: dict[str, Any]) -> str:
        made = [getattr(self, name) for name in dir(self) if name[:3] == "do_"]
        made += [functools.partial(self._done, *each) for each in _DONE]
        while True:
            text = self.pick.choice(made)(held)
            if text:
                return str(text)

    def _done(self, text: str, kinds: tuple[type, ...], held: dict[str, Any]) -> str | None:
        own = [held[n] for n in _CLASSES if n in held]
        name = self._one(held, *(kinds or own))
        picked = {kind: self.pick.choice(of) for kind, of in _PICKED.items()}
        return name and text.format(name=name, value=self._value(held), **picked)

    def _one(self, held: dict[str, Any], *kinds: Any) -> str | None:
        known = (n for n in (*_VALUES, *_FUNCTIONS, *_CLASSES) if n in held)
        names = [name for name in known if isinstance(held[name], kinds)]
        return self.pick.choice(names) if names else None

    def _value(self, held: dict[str, Any]) -> str:
        fresh = ["[]", "{}", "1.5", "'text'", "(1, 2)", "numpy.arange(6.0)", "[[1], {}]"]
        names = [n for n in (*_VALUES, *_FUNCTIONS, *_CLASSES) if n in held]
        made = [f"{n}()" for n in _CLASSES if n in held]
        return self.pick.choice([*fresh, *names, *names, *made])

    def do_bind(self, held: dict[str, Any]) -> str:
        return f"{self.pick.choice(_VALUES)} = {self._value(held)}"

    def do_view(self, held: dict[str, Any]) -> str | None:
        name = self._one(held, numpy.ndarray)
        end = self.pick.choice(["[1:]", "[::2]", "[:4]"])
        return name and held[name].size > 4 and f"{self.pick.choice(_VALUES)} = {name}{end}"

    def do_define(self, held: dict[str, Any]) -> str:
        name, other = self.pick.choice(_FUNCTIONS), self.pick.choice((*_FUNCTIONS, *_VALUES))
        default = self.pick.choice(["None", "1", self._value(held)])
        return f"def {name}(a={default}):\n    return a, {other}, {self.pick.randrange(3)}"

    def do_close(self, held: dict[str, Any]) -> str:
        name = self.pick.choice(_FUNCTIONS)
        return (
            f"def make(part):\n    def {name}():\n        nonlocal part\n        part = [part]\n"
            f"        return part\n    def twin(): return part, {name}\n    return {name}, twin\n"
            f"{name}, {self.pick.choice(_VALUES)} = make({self._value(held)})\ndel make"
        )

    def do_call(self, held: dict[str, Any]) -> str | None:
        name = self._one(held, types.FunctionType)
        closes = name and held[name].__closure__ and held[name].__name__ != "twin"
        return f"{name}()" if closes else None

    def do_class(self, held: dict[str, Any]) -> str:
        name = self.pick.choice(_CLASSES)
        base = self.pick.choice(["object", *(n for n in _CLASSES if n in held)])
        if name != "B" and base == "B":
            base = "object"
        return (
            f"class {name}({base}):\n    n = {self.pick.randrange(3)}\n"
            f"    def m(self): return super().__init__(), {self.pick.choice(_VALUES)}"
        )

    def do_unpatch(self, held: dict[str, Any]) -> str | None:
        name = self._one(held, type)
        own = [n for n in "nm" if name and n in vars(held[name])]
        return f"del {name}.{self.pick.choice(own)}" if own else None

    def do_defaults(self, held: dict[str, Any]) -> str | None:
        name = self._one(held, types.FunctionType)
        arguments = name and held[name].__code__.co_argcount
        return f"{name}.__defaults__ = ({self._value(held)},)" if arguments else None


class _Same:
    """Compares two graphs: each object of one must match exactly one object of the other."""

    def __init__(self, names: set[str]) -> None:
        self.names = names
        self.there: dict[int, Any] = {}
        self.back: dict[int, Any] = {}
        self.arrays: list[tuple[Any, Any]] = []

    def check(self, one: Any, other: Any, path: str) -> None:
        if isinstance(one, _PLAIN):
            assert type(one) is type(other) and one == other, f"{path}: {one!r} is {other!r}"
            return
        if isinstance(one, types.ModuleType) or getattr(one, "__module__", "") == "builtins":
            assert one is other, path
            return
        if type(one) is not tuple:
            if id(one) in self.there or id(other) in self.back:
                assert self.there.get(id(one)) is other, f"{path}: is another object"
                assert self.back.get(id(other)) is one, f"{path}: is another object"
                return
            self.there[id(one)], self.back[id(other)] = other, one
        if isinstance(one, numpy.ndarray):
            assert one.tolist() == other.tolist(), path
            self.arrays.append((one, other))
            return
        ours, theirs = dict(self.parts(one)), dict(self.parts(other))
        assert list(ours) == list(theirs) or set(ours) == set(theirs), f"{path}: {ours} {theirs}"
        for name, part in ours.items():
            self.check(part, theirs[name], f"{path}{name}")

    def parts(self, one: Any) -> Iterator[tuple[str, Any]]:
        yield " type", type(one) if type(one) is not type else "class"
        match one:
            case list() | tuple():
                yield from ((f"[{n}]", part) for n, part in enumerate(one))
            case dict():
                yield from ((f"[{key!r}]", part) for key, part in one.items())
            case types.FunctionType():
                yield " code", one.__code__.co_code + repr(one.__code__.co_consts[1:]).encode()
                yield " name", one.__qualname__
                yield " defaults", one.__defaults__
                yield from ((f" closes[{n}]", c) for n, c in enumerate(one.__closure__ or ()))
                yield from ((f".{name}", part) for name, part in vars(one).items())
            case types.CellType():
                yield " content", one.cell_contents
            case type():
                yield " bases", one.__bases__
                given = "__dict__", "__weakref__", "__doc__", "__slotnames__"
                yield from ((f".{n}", p) for n, p in vars(one).items() if n not in given)
            case _:
                yield from ((f".{name}", part) for name, part in vars(one).items())

    def check_memory(self) -> None:
        for n, (one, other) in enumerate(self.arrays):
            for also, its in self.arrays[:n]:
                shares = numpy.shares_memory(one, also)
                assert numpy.shares_memory(other, its) == shares, "memory is shared otherwise"


def _definitions(found: dict[int, Any], back: dict[int, Any]) -> list[tuple[Any, Any]]:
    """Definitions that keep their identity; a closure belongs to its holder."""
    kinds = types.FunctionType, type
    pairs = [(back[id(other)], other) for other in found.values()]
    definitions = [(one, other) for one, other in pairs if isinstance(one, kinds)]
    return [pair for pair in definitions if not getattr(pair[0], "__closure__", None)]


@pytest.mark.parametrize(
    "seed", [*range(5), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(5, 300))]
)
def test_rank_graph_matches_the_notebooks(notebook: LiveNotebook, seed: int) -> None:
    steps, rank = _Steps(seed), notebook.rank0
    notebook.run("import numpy")
    names = {"numpy", *_VALUES, *_FUNCTIONS, *_CLASSES}
    text, known = [], list[tuple[Any, Any]]()
    for _ in range(8):
        for _ in range(steps.pick.randrange(4)):
            text.append(steps.statement(notebook.values))
            notebook.run(text[-1])
        if steps.pick.randrange(5) == 0:  # a failed launch, which ranks may have opened
            packed = rank.pack(notebook.values, *names)
            if steps.pick.randrange(2):
                rank.open(packed)
        text.append("# sent")
        before = {n for n in names if n in notebook.values}
        rank.cell(notebook.values, *before)
        same = _Same(names)
        told = "\n".join(text)
        for name in sorted(names):
            assert (name in notebook.values) == (name in rank.values), f"{name}\n{told}"
            if name in before:
                try:
                    same.check(notebook.values[name], rank.values[name], name)
                except AssertionError as wrong:
                    raise AssertionError(f"{wrong}\n{told}") from None
        same.check_memory()
        for one, other in known:
            now = same.there.get(id(one))
            assert now is None or now is other, f"{one} is another\n{told}"
        known = _definitions(same.there, same.back)
        assert rank.cell(notebook.values, *before) == set(), f"sent again\n{told}"
