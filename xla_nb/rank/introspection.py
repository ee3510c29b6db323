"""Tab completion, `name?` and Shift-Tab for a rank's objects: expressions are resolved without
running code, and IPython's inspector describes the objects."""

from __future__ import annotations

import ast
import builtins
import inspect
import re
import sys
import types
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xla_nb import untrusted
from xla_nb.rank.preview import in_short

_KEY = r"""\d+|"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'"""
#: `model.layers[0].`, `table["`: an expression, and the beginning of an attribute or a key.
_MEMBER = re.compile(
    rf"(?<![\w.\])\"'])([^\W\d]\w*(?:\.[^\W\d]\w*|\[(?:{_KEY})\])*)"
    r"\s*(?:\.\s*(?P<name>\w*)|\[\s*[\"'](?P<key>[^\"']*))$"
)
_NAME = re.compile(r"(?<![\w.\])\"'])\w*$")
_WORD = re.compile(r"[^\"'\\\n]+")  # a name, or a key that is valid in either quotes
_MOST = 2000  # completions
_SECONDS = 2.0  # time limit to describe an object
#: Descriptors that bind to instances without running user code.
_BINDING = (
    *(types.FunctionType, classmethod, staticmethod, types.MemberDescriptorType),
    *(types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType),
)
#: The fields of `name?`, in IPython's words and order; docstrings are left out if there is source.
_FIELDS = {
    "Signature": "definition",
    "Init signature": "init_definition",
    "Docstring": "docstring",
    "Init docstring": "init_docstring",
    "Type": "type_name",
    "String form": "string_form",
    "Length": "length",
    "File": "file",
    "Source": "source",
}


@dataclass(frozen=True)
class Completions:
    """Replacements for `fragment`, the end of the text before the cursor.

    of_object  they are attributes or keys of an object; else names, besides the notebook's"""

    fragment: str = ""
    matches: tuple[str, ...] = ()
    of_object: bool = False


def completions(text: str) -> Completions:
    """Completions at the end of `text`, a cell up to the cursor."""
    namespace = _rank_names()
    line = text.rpartition("\n")[2]
    member, name = _MEMBER.search(line), _NAME.search(line)
    if member is None:
        return _matching(name[0], list(namespace)) if name else Completions()
    try:
        value = find(namespace, member[1])
        if member["name"] is not None:
            return _matching(member["name"], dir(value), of_object=True)
        return _matching(member["key"], list(dict.keys(value)), of_object=True)
    except Exception:  # it does not exist, or only running code could tell
        return Completions()


def _matching(fragment: str, candidates: Sequence[Any], *, of_object: bool = False) -> Completions:
    """Words that begin with `fragment`; `_names` only if `_` was typed, as in IPython."""
    hidden = () if fragment.startswith("_") else "_"
    words = (word for word in candidates if type(word) is str and _WORD.fullmatch(word))
    matches = (word for word in words if word.startswith(fragment) and not word.startswith(hidden))
    return Completions(fragment, tuple(sorted(matches)[:_MOST]), of_object)


# ---------------------------------------------------------------- resolving expressions


def _rank_names() -> dict[str, Any]:
    return vars(sys.modules["__main__"])


def find(namespace: dict[str, Any], expression: str) -> Any:
    """The object that `model.layers[0].weight` or `table["key"]` refers to. Raises an exception if
    it does not exist, or if only a property or other code could tell."""
    return _resolve(namespace, ast.parse(expression.strip(), mode="eval").body)


def _resolve(namespace: dict[str, Any], node: ast.expr) -> Any:
    match node:
        case ast.Name(id=name):
            return namespace[name] if name in namespace else vars(builtins)[name]
        case ast.Attribute(value=inner, attr=name):
            return _attribute(_resolve(namespace, inner), name)
        case ast.Subscript(value=inner, slice=ast.Constant(value=key)):
            return _item(_resolve(namespace, inner), key)
    raise LookupError


def _attribute(value: Any, name: str) -> Any:
    is_class = isinstance(value, type)
    attrs = {} if is_class else untrusted.registered(value) | untrusted.attributes(value)
    if name in attrs:
        return attrs[name]
    attribute = inspect.getattr_static(value, name)
    if isinstance(attribute, _BINDING):
        return attribute.__get__(None, value) if is_class else attribute.__get__(value, type(value))
    if hasattr(type(attribute), "__get__"):
        raise LookupError
    return attribute


def _item(value: Any, key: Any) -> Any:
    if modules := untrusted.registered(value):  # of a torch container
        return modules[str(key)]
    cls: Any = next(cls for cls in (dict, list, tuple) if isinstance(value, cls))
    return cls.__getitem__(value, key)


# ---------------------------------------------------------------- describing objects


def about(expression: str, source: bool = False) -> str:
    """IPython's text on an object for `name?`, with its source for `name??`; "" if there is none.
    Nothing is computed on a device."""
    from IPython.core.oinspect import Inspector

    try:
        value = find(_rank_names(), expression)
    except Exception:
        return ""

    def inspect_value() -> dict[str, Any]:
        parameters = inspect.signature(Inspector).parameters
        theme = {"theme_name": "nocolor"} if "theme_name" in parameters else {}  # since IPython 9
        inspector: Any = Inspector(**theme)
        return dict(inspector.info(value, oname=expression.strip(), detail_level=int(source)))

    try:
        info = untrusted.within(_SECONDS, lambda: in_short(inspect_value))
    except Exception:  # from a user's object
        info = {"type_name": untrusted.name_of(type(value))}
    if info.get("file"):
        file = Path(info["file"])
        label = file.name if file.name.startswith("Cell ") else ""  # else the generated module
        info["file"] = file if file.exists() else label
    lines = []
    for title, key in _FIELDS.items():
        text = str(info.get(key) or "").strip("\n")
        if text and not (info.get("source") and key.endswith("docstring")):
            is_long = "\n" in text
            lines += [f"{title}:", text] if is_long else [f"{title + ':':<16}{text}"]
    return "\n".join(lines)
