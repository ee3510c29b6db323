"""The page's script, of which front ends get one."""

import re
from collections import Counter

import pytest

from xla_nb.views.panel import widget

SCRIPTS = {name: (widget.PAGE / f"{name}.js").read_text("utf-8") for name in widget.SCRIPTS}
#: What a script defines for all. `defined` splits `const [A, B] = …`.
DEFINED = re.compile(r"^(?:async function|function|class|const) (\[[^\]]*\]|\w+)", re.MULTILINE)


def defined(script: str) -> list[str]:
    return [name for names in DEFINED.findall(script) for name in re.findall(r"\w+", names)]


def test_every_script_of_the_folder_is_loaded() -> None:
    assert sorted(SCRIPTS) == sorted(path.stem for path in widget.PAGE.iterdir())


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_says_its_job(name: str) -> None:
    assert re.match(r"// [A-Z].*", SCRIPTS[name])


def test_no_name_is_defined_twice_and_each_is_used() -> None:
    names = Counter(name for text in SCRIPTS.values() for name in defined(text))
    assert [name for name, times in names.items() if times > 1] == []
    words = Counter(re.findall(r"\w+", widget.script()))
    assert [name for name in names if words[name] < 2] == []


def test_the_library_of_the_charts_is_as_it_was_released() -> None:
    library = widget.uplot()
    assert len(library.encode()) <= 60_000
    assert re.search(r"^/\*! https://github.com/leeoniya/uPlot \(v[\d.]+\) \*/$", library, re.M)
    assert "MIT" in (widget.PAGE.with_name("vendor") / "uPlot.LICENSE").read_text("utf-8")
