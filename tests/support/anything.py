"""Generated cells and option lines: anything that a user may type or paste after a magic.

Most are almost valid. About half of the names in them exist in the notebook of tests/test_anything.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator

from hypothesis import strategies as st

from xla_nb.run.options import OPTIONS

#: Names in the notebook: plain values, code, and a value that cannot be sent (`lines`).
HELD = ["n", "box", "twice", "Net", "net", "math", "lines", "größe", "chained"]
#: Names that an earlier launched cell defines.
LAUNCHED = ["scale", "Shape", "shared", "ten"]
NAMES = [*HELD, *LAUNCHED, "f", "g", "rank", "nowhere", "Net2", "ﬁne", "print", "open", "__name__"]

EXPRESSIONS = [
    "1", "'text'", "NAME", "NAME(NAME)", "NAME.NAME", "[NAME for NAME in NAME]", "lambda x: NAME",
    "(w := NAME)", "f'{NAME!r:>{NAME}} {NAME=}'", "{**NAME}", "{'a': NAME}", "NAME if NAME else 1",
    "b'\\x00'", "...", "-NAME @ NAME", "NAME[1:, ::NAME]", "sum(NAME for NAME in box)",
    "'''two\nlines'''", "f'''{\nNAME}'''", "1_000j", "await NAME", "yield", "super()", "[*NAME]",
    "'é\\N{BULLET}'", "'a\x0cb\u2028c'", "'\\ud800'", "0xfffffffffffffffffffffff", "print(NAME)",
    "(lambda: (yield))()", "__class__", "{NAME async for NAME in NAME}", "NAME.__dict__", "9e999",
]  # fmt: skip

STATEMENTS = [
    "NAME = EXPR", "NAME += EXPR", "NAME: EXPR = EXPR", "NAME: 'EXPR'", "EXPR", "a, *b = EXPR",
    "NAME.x = EXPR", "NAME[EXPR] = EXPR", "del NAME", "global NAME", "nonlocal NAME", "pass",
    "import NAME", "import os.path as p, sys", "from math import *", "from nowhere import *",
    "from os import path, sep as NAME", "from . import NAME", "from .NAME import *", "return EXPR",
    "from __future__ import annotations", "from __future__ import braces", "assert EXPR, EXPR",
    "raise EXPR from NAME", "break", "continue", "NAME = 1; NAME = 2; print(NAME)", "# only this",
    "def NAME(rank): return EXPR", "def NAME(): pass", "def NAME(rank, *, x=EXPR, **k): pass",
    "def NAME(rank, /, x: EXPR = EXPR, *a, lock) -> EXPR:BLOCK", "async def NAME(rank):BLOCK",
    "def NAME(rank):BLOCK", "def NAME(rank):BLOCK", "def NAME(rank):BLOCK",
    "def NAME(rank):\n    global NAME\n    NAME = EXPR", "def NAME(rank):\n    yield EXPR",
    "@EXPR\ndef NAME(rank):BLOCK", "@NAME\n# why\n@NAME(EXPR)\n\nclass NAME:BLOCK",
    "class NAME(NAME, metaclass=EXPR):BLOCK", "class NAME:\n    x = EXPR\n    def go(self):BLOCK2",
    "if EXPR:BLOCKelse:BLOCK", "for NAME in EXPR:BLOCKelse:BLOCK", "while EXPR:BLOCK",
    "try:BLOCKexcept NAME as NAME:BLOCKfinally:BLOCK", "try:BLOCKexcept* ValueError:BLOCK",
    "try:\n    import NAME\nexcept ImportError:\n    NAME = None", "with EXPR as NAME, EXPR:BLOCK",
    "async with EXPR:BLOCK", "match EXPR:\n    case {'a': NAME, **NAME}:BLOCK2    case _: pass",
    "match EXPR:\n    case [NAME, *NAME] | NAME.NAME if EXPR:BLOCK2", "type NAME[T: EXPR] = EXPR",
    "def NAME[T](rank: T):BLOCK", "if __name__ == '__main__':BLOCK", "if True: NAME = EXPR",
    "NAME = (\n  EXPR,\n\n  # inside\n  EXPR)", "NAME = EXPR + \\\n  EXPR", "x = 1 ;", "x = [",
    "'''not closed", "def NAME(", "    NAME = EXPR", "\tNAME = EXPR",
    "if EXPR:\n\tx = 1\n        y",
    "NAME = = 1", "f(", ")", "print 'two'", "x = 1 2", "NAME = 0777", "f'{'", "f'{NAME", "\\",
    "$NAME",
    "%time NAME = EXPR", "%time EXPR", "!ls {NAME} $NAME", "NAME = !ls", "?NAME", "NAME?", "NAME??",
    "%matplotlib inline", "%timeit EXPR", "%env A=NAME", "NAME = %pwd", "%%time\nEXPR", "!!ls", "%",
    "%nowhere NAME", "!", ",f a b", ";f a b", "/f a b", "get_ipython().system(EXPR)", "%%xla_spawn",
    "get_ipython().run_line_magic(NAME, EXPR)", "get_ipython().run_line_magic()", "%cd NAME",
    "\x0c",
    "get_ipython().magic(EXPR)", "exec(EXPR)", "globals()['NAME'] = EXPR", "NAME\x00 = 1",
    "\ufeffx",
    "NAME = '\ud800'", "# \udfff", "x = 'a\rb'", "y = 1\rz = 2", "NAME = '''a\r\nb'''\r\nx = 1",
    "\x1a",
    "'long LONG' + EXPR", "NAME = LONG2", "µ = ª = 1", "NAME = NAME\u00a0+ 1", "“x”", "x\u200b = 1",
]  # fmt: skip

#: Texts with a given number of levels or parts.
DEEP = [
    lambda n: "(" * n + ")" * n,
    lambda n: "x = " + "[" * n + "]" * n,
    lambda n: "x = " + "1 + " * n + "1",
    lambda n: "x = " + "-" * n + "1",
    lambda n: "x = " + "not " * n + "n",
    lambda n: "x = n" + ".real" * n,
    lambda n: "def f(rank):\n    return n" + ".real" * n,
    lambda n: "x = print" + "()" * n,
    lambda n: "x = " + "lambda: " * n + "n",
    lambda n: "x: '" + "1 + " * n + "n' = 1",
    lambda n: "def f(rank, x=" + "1 + " * n + "1): pass",
    lambda n: "x = f'" + "{1}" * n + "'",
    lambda n: "\n".join(" " * level + "if n:" for level in range(min(n, 400))),
    lambda n: "\n".join(" " * level + f"def f{level}(rank):" for level in range(min(n, 150))),
    lambda n: "if n == 0: pass\n" + "".join(f"elif n == {i}: pass\n" for i in range(n)),
    lambda n: "".join(f"def f{i}(rank):\n    return f{i + 1}\n" for i in range(min(n, 5000))),
    lambda n: "".join(f"x{i} = {i}\n" for i in range(min(n, 5000))),
    lambda n: "x = 1; " * n,
    lambda n: "\n" * n + "x = nowhere",
    lambda n: "#" * n,
    lambda n: "x = " + "9" * n,
    lambda n: "x" * n + " = 1",
    lambda n: "x = " + "\\\n" * n + "1",
]

BROKEN = ["", " ", "\n", "\n\n\n", "\t", "\r\n", "#", "# %%", "\ufeff", "\x00", "\ud800", "\\", ";"]


class _Writer:
    """Writes text from numbers."""

    def __init__(self, numbers: Iterator[int]) -> None:
        self.numbers = numbers

    def number(self) -> int:
        return next(self.numbers, 0)

    def pick(self, options: list[str]) -> str:
        return options[self.number() % len(options)]

    def filled(self, template: str, depth: int) -> str:
        """A template with its capital words filled in; `depth` limits the nesting."""
        parts = []
        while template:
            for word, write in (
                ("NAME", lambda: self.pick(NAMES)),
                ("EXPR", lambda: self.expression(depth + 1)),
                ("BLOCK2", lambda: self.block(8, depth + 1)),
                ("BLOCK", lambda: self.block(4, depth + 1)),
                ("LONG2", lambda: "[" + "n, " * 3000 + "n]"),
                ("LONG", lambda: "long " * 3000),
            ):
                if template.startswith(word):
                    parts.append(write())
                    template = template.removeprefix(word)
                    break
            else:
                parts.append(template[0])
                template = template[1:]
        return "".join(parts)

    def expression(self, depth: int = 0) -> str:
        return "1" if depth > 6 else self.filled(self.pick(EXPRESSIONS), depth)

    def statement(self, depth: int = 0) -> str:
        return "pass" if depth > 4 else self.filled(self.pick(STATEMENTS), depth)

    def block(self, indent: int, depth: int) -> str:
        lines = [self.statement(depth) for _ in range(1 + self.number() % 2)]
        text = "\n".join(lines).replace("\n", "\n" + " " * indent)
        return f"\n{' ' * indent}{text}\n"

    def valid(self, kind: str) -> str:
        """The next text that compiles; after a few attempts, a plain one."""
        for _ in range(6):
            text = self.statement() if kind == "exec" else self.expression()
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    compile(text, "", kind, dont_inherit=True)
            except (SyntaxError, ValueError):
                continue
            return text
        return "n" if kind == "eval" else "def f(rank):\n    return n"


@st.composite
def cells(draw: st.DrawFn) -> str:
    """Text of a cell, below its magic."""
    writer = _Writer(iter(draw(st.lists(st.integers(0, 10**6), min_size=30, max_size=90))))
    kind = writer.number() % 20
    if kind == 0:
        return writer.pick(BROKEN) * (1 + writer.number() % 3)
    if kind == 1:
        levels = [20, 90, 200, 450, 950, 2_000, 20_000]
        deep = DEEP[writer.number() % len(DEEP)](levels[writer.number() % len(levels)])
        return writer.pick(["", "import os\n"]) + deep + writer.pick(["", "\ndef f(rank): pass"])
    good = 4 if kind < 12 else 1
    lines = [writer.valid("exec") for _ in range(writer.number() % 5 + good - 1)]
    if kind >= 8:
        lines.insert(writer.number() % (len(lines) + 1), writer.statement())
    text = writer.pick(["\n", "\n", "\n", "\n\n", "\r\n", "\r", "\n\x0c\n"]).join(lines)
    return text + writer.pick(["", "\n", " ", "\\", "\n\n#"])


WORDS = [
    "1", "2", "-1", "0", "99999999999999999999", "9" * 5000, "1.5", "1e3", "nan", "inf", "-inf",
    "٣",
    "²", "", " ", "5m", "2h", "-3s", "9" * 400 + "h", "true", "None", "xla", "spmd", "torchax",
    "XLA",
    "local", "ray", "ray://", "ray://h:1", "ray:// x", "text", "panel", "none", "A=1", "A=", "=1",
    "A=\x00", "A=\ud800", "LD_PRELOAD=x", "PJRT_DEVICE=CPU", "PJRT_DEVICE=TPU", "a b", "'",
    '"', "\\",
    "é", "run", "f", "nowhere", "class", "__builtins__", "__name__", "In", "_", "print", "größe",
    "ﬁ",
    "n", "box", "get_ipython", "x" * 5000, "{n}", "{nowhere}", "{1/0}", "{", "}", "{{n}}", "$n",
    "$x",
    "$nowhere", "{box.x}", "{n!r:>9}", "{n:{n}}", "#", "# --bg", "-", "--", "=", "-n", "--args",
    "\u2028",
    "\t", "\x1b[31m", "<b>", "~", "*", "`ls`", "!ls", "%s", "%(prog)s", "1G", "9" * 400 + "G",
    "@file",
]  # fmt: skip

FLAGS = [
    *(option.flag for option in OPTIONS.values()),
    *(
        "--args",
        "--args",
        "--args",
        "-o",
        "-o",
        "--nowhere",
        "-x",
        "--tim",
        "--arg",
        "-bg",
        "--BG",
        "--keep_going",
    ),
    *("-n4", "--out", "—bg", "--timeout=", "--=", "-oname", "--bg-run"),
]

ARGUMENTS = [
    "EXPR", "(EXPR,)", "()", "(1, 2)", "[1]", "(NAME, NAME)", "1/0", "(", "x = 1", "'", "exit()",
    "(__import__('sys').exit(3),)", "raise_()", "(Rude(),)", "Rude()", "({'a': 1}['b'],)",
    "(lines,)",
    "(chained(5000),)", "(shared,)", "(scale,)",
    "9" * 5000, "(" * 300 + ")" * 300, "-" * 5000 + "1",
    "(1,)\x00", "(\ud800,)", "\n(1,)", " (1,)", "(w := 1,)", "{'a': 1}", "{n}", "()()", "(Angry,)",
]  # fmt: skip


@st.composite
def lines(draw: st.DrawFn) -> str:
    """Text of a magic line, after the magic's name."""
    writer = _Writer(iter(draw(st.lists(st.integers(0, 10**6), min_size=12, max_size=40))))
    if writer.number() % 2:  # a lone option, with nothing else to refuse first
        return _option(writer)
    words = [writer.pick(WORDS)] if writer.number() % 4 == 0 else []
    words += [_option(writer) for _ in range(writer.number() % 5)]
    if writer.number() % 6 == 0:
        words.insert(writer.number() % (len(words) + 1), writer.pick(WORDS))
    return writer.pick([" ", " ", " ", "  ", "\t"]).join(words)


#: Values that each option may accept.
_RIGHT = {
    "-n": ["1", "2", "8"], "--runtime": ["xla", "spmd", "torchax"], "--on": ["local", "ray"],
    "--hosts": ["1", "2"], "--slices": ["1", "2", "3"], "--wait": ["5", "2m"], "--env": ["A=1"],
    "--timeout": ["5", "2m"], "--grace": ["1"], "--hang-after": ["0", "5m"], "-o": ["run", "other"],
    "--view": ["text", "none"], "--args": ["(1,)", "()", '"(n, box)"'],
}  # fmt: skip


def _option(writer: _Writer) -> str:
    flag = writer.pick(FLAGS)
    takes = flag in _RIGHT
    if not takes and writer.number() % 5:
        return flag
    if takes and writer.number() % 3 == 0:
        return f"{flag} {writer.pick(_RIGHT[flag])}"
    arguments = flag == "--args" and writer.number() % 4
    value = writer.filled(writer.pick(ARGUMENTS), 0) if arguments else writer.pick(WORDS)
    quote = writer.pick(['"', '"', "'", "", "\\", '"" '])
    return f"{flag}{writer.pick([' ', ' ', '='])}{quote}{value}{quote}"
