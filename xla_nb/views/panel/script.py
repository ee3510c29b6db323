"""The page's script: the modules of `page`, joined in order.

A front end loads one script for a widget, and there is no build step. Each module is an ES module
that loads by itself too; joined, they share one scope. So a module imports only from those before
it, and no two of them define the same name.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

PAGE = Path(__file__).with_name("page")

#: From the ground up. Each begins with its one job.
MODULES = (
    *("values", "words", "messages"),
    *("nodes", "folding", "toolbar", "gauges", "ansi"),
    *("lines", "store"),
    *("places", "stacks", "troubles", "head"),
    *("lanes", "rows", "details", "ranks"),
    *("cells", "variables"),
    *("axes", "curves", "chart", "figures"),
    *("files", "folds", "output"),
    *("displays", "view", "panel"),
)

IMPORT = re.compile(r'^import \{([^}]*)\} from "\./(\w+)\.js";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?!default)", re.MULTILINE)
#: Whole lines, and what follows the end of a statement or part of one.
_COMMENT = re.compile(
    r"^\s*/\*\*(?:[^*]|\*(?!/))*\*/$|(?:^|(?<=[;,{(]))[ \t]*//(?: .*)?$", re.MULTILINE
)
_SPACE = re.compile(r"^\s+", re.MULTILINE)  # no text of the page has a line of its own


def modules() -> dict[str, str]:
    """The modules' own text by name, in order."""
    return {name: (PAGE / f"{name}.js").read_text("utf-8") for name in MODULES}


@functools.cache
def joined() -> str:
    """All modules as one, without imports, exports, comments and indentation."""
    return "".join(map(_inner, modules().values()))


def _inner(module: str) -> str:
    for dropped in (IMPORT, _EXPORT, _COMMENT, _SPACE):
        module = dropped.sub("", module)
    return module
