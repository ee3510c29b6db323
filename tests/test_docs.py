"""Links, modules, names and tests that the pages mention exist."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def text(page: Path) -> str:
    """A page without its code blocks."""
    return FENCE.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub gives to a page's headings."""
    headings = re.findall(r"^#+ (.+)$", text(page), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def is_there(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = page.parent / path if path else page
    return target.exists() and (not anchor or anchor in anchors(target))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_has_a_target(page: Path) -> None:
    links = re.findall(r"\]\(([^)]+)\)", text(page))
    assert not [link for link in links if "://" not in link and not is_there(page, link)]


@pytest.mark.parametrize("name", ["how-it-works", "decisions"])
def test_every_mentioned_module_exists(name: str) -> None:
    modules = re.findall(r"(?<!\[)`([\w/]+\.(?:py|js))`", text(ROOT / "docs" / f"{name}.md"))
    assert not [path for path in modules if not (ROOT / "xla_nb" / path).exists()]


def test_names_mentioned_with_a_module_are_in_it() -> None:
    page = ROOT / "docs" / "how-it-works.md"
    glossary = re.findall(r"\| `(\w+)` \| \[[^]]*\]\(([^)]*)\)", text(page))
    prose = re.findall(r"`(\w+)` in\s\[[^]]*\]\(([^)]*\.\w+)\)", text(page))
    assert glossary and prose
    for name, path in [*glossary, *prose]:
        assert re.search(rf"\b{name}\b", (page.parent / path).read_text()), f"{path} has no {name}"


def test_every_test_mentioned_on_the_reliability_page_exists() -> None:
    table = text(ROOT / "docs" / "reliability.md").partition("## ")[0]
    names = re.findall(r"[\w/]*\btest_\w+", table)
    assert names
    assert not [name for name in names if not (ROOT / "tests" / f"{name}.py").exists()]
