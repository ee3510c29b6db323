"""Objects that modules hold: a sentinel, a registry, the environment, a random generator.

On ranks such an object is the one of their module, since the module's functions use it. The
notebook's content is put into that object, except in modules of Python, NumPy and torch: what
matters of these is process state (`process_state`, `random_state`).
"""

from __future__ import annotations

import contextvars
import dis
import enum
import functools
import hashlib
import importlib.abc
import importlib.machinery
import itertools
import operator
import sys
import time
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import cloudpickle  # type: ignore[import-untyped]

from xla_nb.pickling import builtin_types, code_facts, rebuild
from xla_nb.pickling.rebuild import Call

#: Packages whose objects hold process state.
OF_THE_PROCESS = sys.stdlib_module_names | {"numpy", "torch", "torch_xla"}
_NOT_OWN = OF_THE_PROCESS | {__package__.partition(".")[0], "__main__", "__mp_main__"}
#: Built-in types whose objects are distinguished by identity, not by content.
_IDENTITY_TYPES = {
    *(*code_facts.CONTAINERS, bytearray, object),
    *(types.MappingProxyType, contextvars.ContextVar),
}
#: Mutable objects of a new interpreter; IPython and others add more to `sys`.
_SYS_NAMES = {"path", "argv", "modules", "warnoptions", "meta_path", "path_hooks"}


#: A module's name, and a name in it ("CFG", or "Settings.values" of a class).
Key: TypeAlias = tuple[str, str]


def is_alone(key: Key) -> bool:
    """True for an object that ranks use as importing its module creates it."""
    return key[1] == "__dict__" or key[0].partition(".")[0] in OF_THE_PROCESS


@dataclass
class _Import:
    """One import of one of the user's own modules: `written` is the file's modification time at the
    import, and `content` the digest of the file, empty if it was rewritten before it was read
    here. `in_place`: %autoreload updated the module. `definitions` are what it defined, by name;
    None until they are recorded."""

    spec: object
    written: int
    content: bytes
    in_place: bool = False
    definitions: Mapping[str, Any] | None = None

    def defined(self, definition: Any) -> bool:
        known = (self.definitions or {}).get(definition.__qualname__)
        return known is definition


class _Contents(NamedTuple):
    """The contents of a module when it was searched: the id of its dict, the number of its names,
    and the ids of everything in it. parts: for the user's own modules, the module and its
    definitions that hold something, each with the ids of its contents."""

    content: int
    names: int
    ids: frozenset[int]
    parts: list[tuple[Any, list[int]]]

    def is_of(self, content: Mapping[str, object]) -> bool:
        return (self.content, self.names) == (id(content), len(content))

    def is_unchanged(self) -> bool:
        return bool(self.parts) and all(_ids(part) == ids for part, ids in self.parts)


class _ImportRecorder(importlib.abc.MetaPathFinder):
    """Records import times and calls `on_reload` before a module is reloaded; finds no modules."""

    def __init__(self, on_reload: Callable[[str, types.ModuleType], None]) -> None:
        self.times = dict.fromkeys(sys.modules, time.time_ns())  # upper bound for these
        self.fresh: set[str] = set()  # names imported since `note_imports`
        self._on_reload = on_reload

    def find_spec(
        self, fullname: str, path: object, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if target is not None and is_own(target):
            self._on_reload(fullname, target)
        self.times[fullname] = time.time_ns()
        self.fresh.add(fullname)
        return None


@functools.cache
def of_this_process() -> Modules:
    return Modules()


class Modules:
    """Finds what modules hold, by identity. It remembers a module's contents as long as the number
    of its names is unchanged: a package's name that is rebound later may be missed, and its value
    is then an ordinary object. The user's own modules, and `sys`, are always searched.

    ids    of what modules hold, and of some other objects
    """

    def __init__(self) -> None:
        self.ids: set[int] = set()  # also of objects that are gone
        self._recorder = _ImportRecorder(self._prepare_reload)
        sys.meta_path.insert(0, self._recorder)
        self._contents: dict[str, _Contents] = {}
        self._imports: dict[str, list[_Import]] = {}  # of the user's own modules, oldest first
        self._seen: list[object] = []  # contents of `sys.modules` at the last look
        self._searched: dict[str, types.ModuleType] = {}  # those that are searched
        self._sizes: list[int] = []  # number of names in each

    def own(self) -> list[types.ModuleType]:
        """Return the user's own modules that are imported."""
        modules = (sys.modules.get(name) for name in self._imports)
        return [module for module in modules if isinstance(module, types.ModuleType)]

    def folders(self) -> list[str]:
        """Return the folders in which these were found, except those in `sys.path`."""
        folders = (_folder(module.__name__, module.__file__ or "") for module in self.own())
        return sorted({*folders}.difference(sys.path))

    def look(self) -> None:
        """Search everything that was imported since the last call, and the user's own modules."""
        seen: list[object] = list(sys.modules.values())
        sizes = self._sizes
        if len(seen) != len(self._seen) or not all(map(operator.is_, seen, self._seen)):
            main = sys.modules["__main__"]  # which gets names with every cell
            others = [(n, m) for n, m in list(sys.modules.items()) if m is not main]
            self._searched = {n: m for n, m in others if isinstance(m, types.ModuleType)}
            self._seen, sizes = seen, []
        searched = self._searched
        self._sizes = list(map(len, map(vars, searched.values())))
        for name, module in searched.items() if self._sizes != sizes else ():
            content = vars(module)
            is_known = name in self._contents and self._contents[name].is_of(content)
            if not is_known and content.get("__spec__") is not None:
                self._search(name, module)
        for name in ["sys", *(name for name in self._imports if name in searched)]:
            self._search(name, searched[name])
        for name in self._imports.keys() & searched.keys():
            self._record_definitions(name, searched[name])
        if self._recorder not in sys.meta_path:
            sys.meta_path.insert(0, self._recorder)

    def note_imports(self) -> None:
        """Record what new imports of own modules define, before %autoreload changes it."""
        names, self._recorder.fresh = self._recorder.fresh, set()
        for name in names:
            module = sys.modules.get(name)
            if isinstance(module, types.ModuleType) and is_own(module):
                self._prepare_reload(name, module)

    def _prepare_reload(self, name: str, module: types.ModuleType) -> None:
        """Prepare for a re-import of one of the user's own modules."""
        if name not in self._imports:
            self._search(name, module)
        self._record_definitions(name, module)

    def _record_definitions(self, name: str, module: types.ModuleType) -> None:
        """Record once what the newest import of a module defined."""
        newest = self._imports[name][-1]
        if newest.definitions is None:
            newest.definitions = weakref.WeakValueDictionary(
                (path, rebuild.function_in(part))
                for path, part in _attributes(name, module)
                if rebuild.is_in_place(name, path, part)
            )

    def changed_in_place(self, name: str) -> None:
        """Record that IPython's %autoreload updated a module to its file's current content."""
        module = sys.modules.get(name)
        if isinstance(module, types.ModuleType) and is_own(module):
            update = _Import(module.__spec__, *_mtime_and_digest(module), in_place=True)
            self._imports.setdefault(name, []).append(update)

    def _search(self, name: str, module: types.ModuleType) -> None:
        imports, contents = self._imports.get(name, []), self._contents.get(name)
        is_known = bool(imports) and imports[-1].spec is module.__spec__
        if not is_known and is_own(module):
            mtime, digest = _mtime_and_digest(module)
            import_time = self._recorder.times.get(name, mtime)
            if import_time < mtime <= time.time_ns():
                mtime, digest = import_time, b""
            self._imports[name] = [*imports, _Import(module.__spec__, mtime, digest)]
        elif contents is not None and contents.is_unchanged():
            return
        namespace = vars(module)
        parts = [(part, _ids(part)) for _, part in _parts(name, module)]
        ids = frozenset(itertools.chain.from_iterable(part_ids for _, part_ids in parts))
        kept = parts if name in self._imports else []
        self._contents[name] = _Contents(id(namespace), len(namespace), ids, kept)
        self.ids |= {*ids, id(namespace)}

    def numbers(self) -> dict[str, int]:
        """Return how often each of the user's own modules was imported."""
        return {name: len(imports) for name, imports in self._imports.items()}

    def is_behind(self, name: str, before: Mapping[str, int]) -> bool:
        """True if one of the user's own modules was imported again since `numbers` was `before`."""
        return len(self._imports.get(name, ())) > before.get(name, 1)

    def is_of(self, definition: Any, number: int) -> bool:
        """True if the import of that number defined a function or class."""
        return self._imports[definition.__module__][number - 1].defined(definition)

    def was_replaced(self, definition: Any) -> bool:
        """True if an earlier import of one of the user's own modules defined it and the newest
        import defined another in its place."""
        imports = self._imports.get(definition.__module__, [])
        states = [one.defined(definition) for one in imports]
        return any(states) and not states[-1]

    def imported_since(self, before: Mapping[str, int]) -> set[str]:
        """Return the user's own modules that were re-imported since `numbers` was `before`: all
        their names were rebound, other than by %autoreload."""
        return {
            name
            for name, imports in self._imports.items()
            if not all(one.in_place for one in imports[before.get(name, 1) :])
        }

    def former(self, definition: Any) -> Any:
        """Return the function or class that %autoreload replaced with this one, to which existing
        objects now refer; None if it did not, or updated the same object. Enums are excluded: each
        class keeps its members."""
        imports = self._imports.get(definition.__module__, [])
        for earlier, later in reversed([*itertools.pairwise(imports)]):
            previous = (earlier.definitions or {}).get(definition.__qualname__)
            if later.defined(definition) and previous is not definition:
                is_same = later.in_place and not isinstance(definition, enum.EnumMeta)
                return previous if is_same else None
        return None

    def is_edited(self, name: str) -> bool:
        """True if the file of one of the user's own modules has changed since its import."""
        imports = self._imports.get(name)
        if not imports or imports[-1].written == _mtime(sys.modules[name]):
            return False
        return imports[-1].content != _mtime_and_digest(sys.modules[name])[1]

    def place(self, obj: object) -> Key | None:
        """Return where the module that defined an object holds it; None if none does."""
        if id(obj) not in self.ids or not _has_identity(obj):
            return None
        namespace: Any = obj if type(obj) is dict else {}
        name = namespace.get("__name__")
        if isinstance(name, str) and code_facts.is_modules(namespace, name):
            return name, "__dict__"
        return next(self._places(obj), None)

    def _places(self, obj: object) -> Iterator[Key]:
        by_value = cloudpickle.list_registry_pickle_by_value()
        for name, contents in self._contents.items():
            module = sys.modules.get(name)
            if module is None or id(obj) not in contents.ids or name in by_value:
                continue
            for attribute, value in _attributes(name, module):
                if value is obj and _binds(module, name, attribute):
                    yield name, attribute


class Content:
    """A placeholder in a pickle for the call that gives a module's object the notebook's
    content."""

    def __init__(self, key: Key, obj: Any, base: type) -> None:
        self._key, self._obj, self._base = key, obj, base

    def __reduce__(self) -> Any:
        filling = rebuild.set_state, self._obj.__getstate__()
        content = *code_facts.held_by_container(self._base, self._obj), *filling
        return rebuild.refill, (*self._key, self._obj, self._base, content)


def reduced(obj: Any, key: Key) -> tuple[Call | None, object]:
    """Return how to send an object that a module holds: the call that returns the module's own
    object, and the call that gives it the notebook's content, so that everything that refers to it
    sees that. An object that defines its own pickling is sent like any other and put into the
    module; one that cannot be pickled is compared."""
    kind = type(obj)
    existing = Call(rebuild.held_by_module, (*key, kind.__name__))
    if is_alone(key):
        return existing, None
    base = object if code_facts.is_refillable(kind) else code_facts.container(kind)
    if base is not None:
        arguments = code_facts.arguments_of_container(base, obj)
        call = Call(rebuild.module_object, (*key, base, kind, *arguments))
        return call, Content(key, obj, base)
    is_custom = not code_facts.is_plain(kind) or hasattr(kind, "__getnewargs__")
    if is_custom or kind in builtin_types.REDUCERS:
        return None, Call(rebuild.put_back, (*key, obj))
    return existing, Call(rebuild.compare, (*key, kind.__name__, 0))


def is_own(module: types.ModuleType) -> bool:
    """True if a module is a file of the user's, not part of an installed package."""
    name, file = (vars(module).get(attribute) for attribute in ("__name__", "__file__"))
    if not isinstance(file, str) or not isinstance(name, str):
        return False
    return _is_own_file(name, file)


def code_of(name: str) -> types.CodeType | None:
    """Return the code of a module of the user's own that this process has not imported, without
    importing it or its package; None if there is none."""
    path: Any = None
    spec: Any = None
    for end in itertools.accumulate(name.split("."), "{}.{}".format):
        spec = importlib.machinery.PathFinder.find_spec(end, path)
        if spec is None:
            return None
        path = spec.submodule_search_locations
    if not _is_own_file(name, spec.origin or ""):
        return None
    try:
        code: types.CodeType | None = spec.loader.get_code(name)
    except (AttributeError, ImportError, OSError, SyntaxError):
        return None
    return code


def _is_own_file(name: str, file: str) -> bool:
    """True if a module's file is Python code of the user's, not part of an installed package."""
    is_package = "-packages/" in file or name.partition(".")[0] in _NOT_OWN
    return file.endswith(".py") and not (is_package or _is_installed(_folder(name, file)))


def _folder(name: str, file: str) -> str:
    """Return the folder in which a module is found."""
    return file.rsplit("/", 1 + name.count(".") + file.endswith("/__init__.py"))[0]


@functools.lru_cache(maxsize=1024)
def _is_installed(folder: str) -> bool:
    """True if pip installed packages in this folder (`--target`)."""
    return any(Path(folder).glob("*.dist-info"))


def _mtime(module: types.ModuleType) -> int:
    """Return the modification time of a module's file; 0 if it is gone."""
    try:
        return Path(module.__file__ or "").stat().st_mtime_ns
    except (AttributeError, OSError, TypeError):
        return 0


def _mtime_and_digest(module: types.ModuleType) -> tuple[int, bytes]:
    """Return the modification time and digest of a module's file."""
    try:
        return _mtime(module), hashlib.blake2b(Path(module.__file__ or "").read_bytes()).digest()
    except OSError:
        return 0, b""


def _attributes(name: str, module: types.ModuleType) -> Iterator[tuple[str, object]]:
    """Yield what a module holds except Python's special names; for the user's own, also what its
    classes and functions hold."""
    for path, part in _parts(name, module):
        for inner, value in list(rebuild.contents(part).items()):
            if not is_special(inner):
                yield f"{path}.{inner}" if path else inner, value


def _parts(name: str, module: types.ModuleType) -> Iterator[tuple[str, Any]]:
    """Yield a module; for the user's own also its classes, and functions that hold more than code:
    few do, and all are searched again and again."""
    yield "", module
    for value in list(vars(module).values()) if is_own(module) else ():
        kind: Any = type(value)
        holds = kind is types.FunctionType and bool(value.__closure__ or value.__dict__)
        if (holds or issubclass(kind, type)) and value.__module__ == name:
            yield from holders(value)


def _ids(part: Any) -> list[int]:
    return list(map(id, rebuild.contents(part).values()))


def holders(definition: Any) -> Iterator[tuple[str, Any]]:
    """Yield a class or function of the user's own module and the functions that it holds, such as
    those created by decorators of it and its methods, each with its path."""
    place = code_facts.place_of(definition)
    is_found = code_facts.value_of(*place) is definition
    todo, seen = [(place[1], definition)] if is_found else [], set[int]()
    for path, holder in todo:
        if id(holder) not in seen and (isinstance(holder, type) or _is_of_own_code(holder)):
            seen.add(id(holder))
            yield path, holder
            contents = list(rebuild.contents(holder).items())
            functions = ((n, part) for n, part in contents if type(part) is types.FunctionType)
            todo += ((f"{path}.{name}", part) for name, part in functions if part.__closure__)


def module_of(function: types.FunctionType) -> types.ModuleType | None:
    """Return the module whose globals a function has, by their `__name__`; a wrapper's `__module__`
    may name another."""
    return sys.modules.get(function.__globals__.get("__name__", ""))


def _is_of_own_code(function: types.FunctionType) -> bool:
    module = module_of(function)
    return module is not None and is_own(module)


def is_special(name: str) -> bool:
    """True for a special name such as `__file__`."""
    return name[:2] == name[-2:] == "__"


def _binds(module: Any, name: str, attribute: str) -> bool:
    """True if a module's own code binds the name, not an import in it or other code."""
    if name == "builtins":
        return False
    if name == "sys":
        return attribute in _SYS_NAMES
    bound = _bound_names(name, _mtime(module))
    return bound is None or attribute.partition(".")[0] in bound


@functools.lru_cache(maxsize=1024)
def _bound_names(name: str, written: int) -> frozenset[str] | None:
    """Return the names that a module's code binds other than by an import; None if it is not Python
    code."""
    try:
        code = sys.modules[name].__spec__.loader.get_code(name)  # type: ignore[union-attr]
    except (AttributeError, ImportError, OSError, SyntaxError):
        return None
    if code is None:
        return None
    steps = list(dis.get_instructions(code))
    return frozenset(
        step.argval
        for previous, step in itertools.pairwise(steps)
        if step.opname in ("STORE_NAME", "STORE_GLOBAL") and "IMPORT" not in previous.opname
    )


def _has_identity(obj: object) -> bool:
    """True if it matters which of several equal objects this is: not for constants."""
    kind: Any = type(obj)
    if kind in _IDENTITY_TYPES or obj is getattr(sys.modules.get("argparse"), "SUPPRESS", None):
        return True  # a string that is compared by identity
    if isinstance(obj, tuple | frozenset):
        return not code_facts.is_ready(obj)  # not made of constants alone
    if kind.__module__ in ("builtins", "typing") or isinstance(obj, code_facts.CODE):
        return False
    root = kind.__module__.partition(".")[0]
    is_here = root not in OF_THE_PROCESS and code_facts.is_made_here(kind)
    if is_here or hasattr(kind, "__get__"):  # nor for class attributes such as cached_property
        return False
    if issubclass(kind, getattr(sys.modules.get("torch"), "Tensor", ())):
        return True
    if kind.__hash__ is object.__hash__:
        return True
    try:
        hash(obj)
    except Exception:  # a table, which refuses to be hashed
        return True
    return False
