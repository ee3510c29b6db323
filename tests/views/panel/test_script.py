"""The page's script, and the library that it draws charts with."""

import re
from collections import Counter
from pathlib import Path

from xla_nb.views.panel import widget

FOLDER = Path(widget.__file__).parent
#: What a script defines for all. `defined` splits `const [A, B] = …`.
DEFINED = re.compile(r"^(?:async function|function|class|const) (\[[^\]]*\]|\w+)", re.MULTILINE)


def defined(script: str) -> list[str]:
    return [name for names in DEFINED.findall(script) for name in re.findall(r"\w+", names)]


def test_no_name_is_defined_twice_and_each_is_used() -> None:
    script = (FOLDER / "panel.js").read_text("utf-8")
    names = Counter(defined(script))
    assert [name for name, times in names.items() if times > 1] == []
    words = Counter(re.findall(r"\w+", script))
    assert [name for name in names if words[name] < 2] == []


def test_the_library_of_the_charts_is_as_it_was_released() -> None:
    library = widget.uplot()
    assert len(library.encode()) <= 60_000
    assert re.search(r"^/\*! https://github.com/leeoniya/uPlot \(v[\d.]+\) \*/$", library, re.M)
    assert "MIT" in (FOLDER / "vendor" / "uPlot.LICENSE").read_text("utf-8")
