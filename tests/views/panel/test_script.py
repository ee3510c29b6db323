"""The page's script: its modules, and what front ends get of them."""

import re
from collections import Counter

import pytest

from xla_nb.views.panel import widget
from xla_nb.views.saved import ranks

MODULES = widget.modules()
#: What is ours of the script: before it is the library that draws the charts.
OWN = widget.joined().removeprefix(widget.uplot())
#: What a module defines for all of it. `defined` splits `const [A, B] = …`.
DEFINED = re.compile(
    r"^(export )?(?:async function|function|class|const) (\[[^\]]*\]|\w+)", re.MULTILINE
)

#: Comments, strings, and the heads of methods, which may be called as a function of a module is.
NEITHER = re.compile(r"//.*|\"[^\"\n]*\"|^\t(?:async |get )?\w+\(.*\) \{$", re.MULTILINE)


def defined(module: str, exported: bool = False) -> list[str]:
    found = [names for mark, names in DEFINED.findall(MODULES[module]) if mark or not exported]
    return [name for names in found for name in re.findall(r"\w+", names)]


def imported(module: str) -> dict[str, list[str]]:
    found = widget.IMPORT.findall(MODULES[module])
    return {origin: re.findall(r"\w+", names) for names, origin in found}


def test_a_lane_has_the_same_colours_live_and_saved_light_and_dark():
    css = widget.PAGE.with_name("panel.css").read_text("utf-8")
    live = re.findall(r"--xn-lane-\w+: (#\w+);", css)
    assert live == list(ranks.COLOURS.values())


def test_every_module_of_the_folder_is_joined() -> None:
    assert sorted(MODULES) == sorted(path.stem for path in widget.PAGE.iterdir())


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_from_those_before_it(module: str) -> None:
    before = widget.MODULES[: widget.MODULES.index(module)]
    for origin, names in imported(module).items():
        if origin == "uplot":
            continue
        assert origin in before, f"{origin} does not come before {module}"
        assert set(names) <= set(defined(origin, exported=True)), f"{origin} exports no such name"
    statements = re.findall(r"^import\b", MODULES[module], re.MULTILINE)
    assert len(statements) == len(imported(module)), "an import of another form"


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_what_it_uses_of_others(module: str) -> None:
    own = NEITHER.sub("", widget.IMPORT.sub("", MODULES[module]))
    for origin, names in imported(module).items():
        unused = [name for name in names if not re.search(rf"(?<![.\w]){name}\b", own)]
        assert not unused, f"{module} imports {unused} of {origin} and does not use it"
    known = {name for names in imported(module).values() for name in names} | set(defined(module))
    for name in {name for other in MODULES for name in defined(other)} - known:
        assert not re.search(rf"(?<![.\w]){name}\(|new {name}\b", own), f"{module} uses {name}"


@pytest.mark.parametrize("module", MODULES)
def test_a_module_says_its_job_and_fits_a_reader(module: str) -> None:
    assert re.match(r"// [A-Z].*", MODULES[module])
    assert len(MODULES[module].splitlines()) <= 450


def test_no_two_modules_define_the_same_name() -> None:
    names = Counter(name for module in MODULES for name in defined(module))
    assert [name for name, times in names.items() if times > 1] == []


def test_the_script_has_the_library_of_the_charts_as_it_was_released() -> None:
    assert widget.joined() == widget.uplot() + OWN
    assert len(widget.uplot().encode()) <= 60_000
    released = re.search(
        r"^/\*! https://github.com/leeoniya/uPlot \(v[\d.]+\) \*/$", widget.uplot(), re.M
    )
    assert released
    licence = widget.PAGE.with_name("vendor") / "uPlot.LICENSE"
    assert "MIT" in licence.read_text("utf-8")


def test_the_script_has_nothing_of_modules_but_one_export() -> None:
    lines = widget.joined().splitlines()
    assert [line for line in lines if line.startswith(("import", "export"))] == [
        "export default () => {"
    ]


def test_the_script_has_all_code_and_no_comments() -> None:
    code = re.compile(
        r"^\s*(?:import [^;]*;|/\*\*[^/]*\*/|//.*)$|^(?:export (?!default))|^\s+", re.MULTILINE
    )
    kept = [line for text in MODULES.values() for line in code.sub("", text).splitlines() if line]
    lines = OWN.splitlines()
    assert [line.partition(" //")[0] for line in kept] == lines


def test_no_text_of_the_page_goes_over_several_lines() -> None:
    texts = [text for module in MODULES.values() for text in re.findall(r"`[^`]*`", module)]
    assert [text for text in texts if "\n" in text] == []


def test_the_script_is_at_most_81_kb_beside_uplot_and_sets_no_html_but_the_output_of_the_end() -> (
    None
):
    assert len(OWN.encode()) <= 81_000
    assert widget.joined().count("innerHTML") == widget.joined().count(
        'innerHTML = model.get("end")'
    )
