"""Checks that a rank opened what was sent: both are pickled, name by name, and compared.

Values are pickled as for live ranks: the names that code uses are not included, and classes and
functions are numbered in the order in which they are met, each pickled separately. Anything lost
without a rule for it (an attribute, a registry, the identity of shared objects) changes the pickle.
"""

from __future__ import annotations

import builtins
import io
import itertools
import os
import pickletools
import types
from collections.abc import Callable, Mapping
from typing import Any

from xla_nb.live_ranks.unit_pickler import LiveUnits, Numbers, UnitPickler
from xla_nb.pickling import module_objects
from xla_nb.pickling.functions_and_classes import Notebook
from xla_nb.pickling.pickler import packed

#: Tests whose values differ on purpose: part of the test's name, and the reason.
ON_PURPOSE = {
    "weak_references_to_unsent_objects": "a weak reference is dead",
    "others_unchanged_on_ranks": "pandas' counts are not pickled a second time",
    "[multiprocessing values and arrays]": "descriptors of files have other numbers",
    "[dataclass sentinels]": "two equal tuples of constants are one in the notebook",
    "[an optimizer defined in the notebook]": "torch adds defaults where it is opened",
    "[the __dict__ of an object with __setstate__]": "the class's `__setstate__` adds an attribute",
    "[a container whose class records insertions]": "so does this one's",
    "[a class with __getstate__ and __setstate__]": "and this one's",
    "[a class with __reduce_ex__]": "as something else",
    "[a notebook class registered with copyreg]": "as something else",
    "[an instance's __setstate__ finds the globals it uses]": "its `__setstate__` computes",
    "[a hash that reads another object's set]": "a set's order is by hash",
    "[bound and constraints]": "cloudpickle knows the type variable in this very process",
    "test_absl_flags": "a set's order is by hash",
    "[shared mapping]": "the test sends a copy of it",
}


def of(
    values: Mapping[str, object],
    labelled: Callable[[types.CodeType], types.CodeType | None] = lambda code: code,
    follow: bool = True,
) -> dict[str, bytes]:
    """The pickle of each value and, with `follow`, of each definition that they refer to."""
    test = os.environ.get("PYTEST_CURRENT_TEST", "")
    if any(part in test for part in ON_PURPOSE):
        return {}
    module_objects.of_this_process().look()
    book, numbers, held = Notebook(values, labelled, (), dir(builtins)), Numbers(), []
    live, found, seen = LiveUnits(book, numbers), dict[str, bytes](), set[int]()
    todo: list[tuple[str, int, Any]] = [(name, 0, value) for name, value in values.items()]
    for name, token, value in todo:
        unit = live.part_of({token: value} if token else {}, None)
        made = packed({} if token else {name: value}, unit, UnitPickler)
        held.append(made)  # so that no other object reuses the id of a temporary one
        found[name] = bytes(made.stream) + b"".join(bytes(one.raw()) for one in made.buffers)
        fresh = {key: one for key, one in unit.met.refers.items() if key not in seen}
        seen |= fresh.keys()
        if follow:
            todo += ((f"{one.__qualname__} ({key})", key, one) for key, one in fresh.items())
    return found


def compare(sent: Mapping[str, bytes], opened: Mapping[str, bytes]) -> None:
    """Raise AssertionError with the first difference."""
    for (name, one), (other, its) in itertools.zip_longest(
        sent.items(), opened.items(), fillvalue=("nothing", b"")
    ):
        ours, theirs = _lines(one), _lines(its)
        assert (name, ours) == (other, theirs), f"{name}, {other}:\n{_first(ours, theirs)}"


def _first(ours: list[str], theirs: list[str]) -> str:
    """Describe the first difference between two pickles."""
    for n, (one, other) in enumerate(itertools.zip_longest(ours, theirs, fillvalue="the end")):
        if one != other:
            return "\n".join([*ours[max(0, n - 12) : n], f"sent:   {one}", f"opened: {other}"])
    return "in nothing"


def _lines(made: bytes) -> list[str]:
    """The operations of pickles, with references to text replaced by the text: equal texts may be
    one object in one process and two in another."""
    stream, lines, memo, objects = io.BytesIO(made), list[str](), dict[int, str](), 0
    last: str | None = None  # the text read last
    while stream.tell() < len(made):
        try:
            operations = list(pickletools.genops(stream))
        except ValueError:  # out-of-band buffers
            lines.append(made[stream.tell() :].hex())
            break
        for operation, argument, _ in operations:
            if operation.name == "MEMOIZE":
                memo[len(memo)] = f"object {objects}" if last is None else last
                objects += last is None
            elif operation.name.endswith("GET"):
                lines.append(memo[argument])
            elif operation.name not in ("FRAME", "PROTO"):
                is_text = isinstance(argument, str | bytes)
                lines.append(repr(argument) if is_text else f"{operation.name} {argument}")
                last = lines[-1] if is_text else None
    return lines
