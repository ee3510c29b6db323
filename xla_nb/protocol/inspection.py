"""What a rank answers about its names: completions, and what an object is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Match:
    """What may stand at the cursor; kind: `function`, `class`, `module`, `instance`, `property` or
    `key`."""

    text: str
    kind: str


@dataclass(frozen=True)
class Completions:
    """What may stand in place of `fragment`, the end of the text before the cursor.

    knows    whether the ranks know the object whose attributes or keys these are; always False for
             names, which the notebook may have others of
    closing  what ends a key, `"]`; "" for attributes and names
    """

    fragment: str = ""
    matches: tuple[Match, ...] = ()
    knows: bool = False
    closing: str = ""


@dataclass(frozen=True)
class About:
    """What IPython tells of an object for `name?`, and with `source` for `name??`.

    line: where it is defined in `file`, from 1; 0 if that is not known. `init_` is of a class."""

    name: str
    found: bool
    type: str = ""
    text: str = ""
    length: str = ""
    file: str = ""
    line: int = 0
    signature: str = ""
    doc: str = ""
    source: str = ""
    init_signature: str = ""
    init_doc: str = ""
