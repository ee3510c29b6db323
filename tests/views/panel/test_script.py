"""The page's script and its chart library."""

import re
from collections import Counter
from pathlib import Path

from xla_nb.views.panel import view

FOLDER = Path(view.__file__).parent
#: The top-level names of a script. `defined` splits `const [A, B] = …`.
DEFINED = re.compile(r"^(?:async function|function|class|const) (\[[^\]]*\]|\w+)", re.MULTILINE)


def defined(script: str) -> list[str]:
    return [name for names in DEFINED.findall(script) for name in re.findall(r"\w+", names)]


def test_each_name_is_defined_once_and_used() -> None:
    script = (FOLDER / "panel.js").read_text("utf-8")
    names = Counter(defined(script))
    assert [name for name, times in names.items() if times > 1] == []
    words = Counter(re.findall(r"\w+", script))
    assert [name for name in names if words[name] < 2] == []


def test_chart_library_is_a_small_licensed_release() -> None:
    library = view.uplot()
    assert len(library.encode()) <= 60_000
    assert re.search(r"^/\*! https://github.com/leeoniya/uPlot \(v[\d.]+\) \*/$", library, re.M)
    assert "MIT" in (FOLDER / "vendor" / "uPlot.LICENSE").read_text("utf-8")
