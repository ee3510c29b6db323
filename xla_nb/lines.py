"""The words on a magic's line: which there are, and what is shown of them.

What a word does is decided elsewhere.
"""

from __future__ import annotations

import argparse
import re
import shlex
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from xla_nb.errors import UsageError
from xla_nb.notebook import Notebook
from xla_nb.run.options import OPTIONS, Word
from xla_nb.wording import meant, shortened

_ARGS = re.compile(r"""--args(?:\s+|=)(?:"[^"]*"|'[^']*'|\S+)""")

#: The parsers of our magics, by these.
_made: dict[str, Parser] = {}


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{self.prog}: {message}. `{self.prog}?` lists the options.")


def parser(prog: str, names: Iterable[str]) -> Parser:
    """A parser of these options of a launch; their values are checked later, with the settings."""
    made = _made[prog] = Parser(prog=prog, add_help=False, allow_abbrev=False)
    for option in map(OPTIONS.__getitem__, names):
        if not option.metavar:
            made.add_argument(option.flag, dest=option.name, action="store_true", default=None)
        elif option.name == "env":
            made.add_argument(option.flag, type=Word, action="append")
        else:
            made.add_argument(option.flag, dest=option.name, type=Word)
    return made


def parsed(parser: Parser, line: str) -> dict[str, Any]:
    try:
        words = shlex.split(line, comments=True)
    except ValueError:
        raise UsageError(f"{parser.prog}: a quote is not closed.") from None
    values, unknown = parser.parse_known_args(words)
    unknown += [word for word in [vars(values).get("entry") or ""] if "=" in word]
    if unknown:
        word = _without_value(next((word for word in unknown if word[:1] == "-"), unknown[0]))
        kind = "option" if word[:1] == "-" else "argument"
        known = parser._option_string_actions
        hint = _elsewhere(word, words) or meant(word.removesuffix("=…"), known)
        hint = hint or f" `{parser.prog}?` lists the options."
        raise UsageError(f"{parser.prog}: Unknown {kind} {shortened(word, 60)}.{hint}")
    return vars(values)


def _elsewhere(word: str, words: Sequence[str]) -> str:
    """Which of our magics has this option, with a space before it; empty if none has."""
    flag = word.removesuffix("=…") if word[:2] == "--" else word[:2]
    for prog, other in _made.items():
        if (option := other._option_string_actions.get(flag)) is not None:
            after = words[words.index(word) + 1 :] if word in words else []
            value = f" {after[0]}" if after and option.nargs is None and "=" not in after[0] else ""
            return f" It is an option of {prog}: `{prog} {flag}{shortened(value, 60)}`."
    return ""


def _without_value(word: str) -> str:
    """`NAME=…` for NAME=VALUE, which may be a secret."""
    name, equals, _ = word.partition("=")
    return f"{name}=…" if equals else word


def without_values(line: str) -> str:
    """A line of %%xla_spawn without the values of --env: as a comment it is part of the cell's
    source, which goes to disk. Raises ValueError where a quote is not closed."""
    words = shlex.split(line, comments=True) if "--env" in line else []
    shown = []
    for before, word in zip(["", *words], words, strict=False):
        if before == "--env":
            shown.append(_without_value(word))
        elif word.startswith("--env="):
            shown.append(f"--env={_without_value(word.removeprefix('--env='))}")
        else:
            shown.append(shlex.quote(word))
    return " ".join(shown).replace("\n", " ") if words else line


def expanded(notebook: Notebook, line: str) -> str:
    """The line of the cell magic that calls this, or is about to run, with `{N}` and `$N` filled in
    as IPython does, but for --args: an expression has braces of its own."""
    depth, frame = -1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_name != "run_cell_magic":
        depth, frame = depth + 1, frame.f_back
    depth += frame.f_back is not None
    expand: Any = notebook.shell.var_expand
    found = _ARGS.search(line)
    if found is None:
        return str(expand(line, depth + 1))
    head, tail = line[: found.start()], line[found.end() :]
    return f"{expand(head, depth + 1)}{found[0]}{expand(tail, depth + 1)}"
