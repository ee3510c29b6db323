"""What the pages name exists, and what they show is what the code prints."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def text(page: Path) -> str:
    """A page without its blocks of code."""
    return FENCE.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """The headings of a page as GitHub links to them."""
    headings = re.findall(r"^#+ (.+)$", text(page), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def is_there(page: Path, link: str) -> bool:
    path, _, anchor = link.partition("#")
    target = page.parent / path if path else page
    return target.exists() and (not anchor or anchor in anchors(target))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)]+)\)", text(page))
    assert not [link for link in links if "://" not in link and not is_there(page, link)]


@pytest.mark.parametrize("name", ["how-it-works", "decisions"])
def test_every_module_that_is_named_exists(name: str) -> None:
    modules = re.findall(r"(?<!\[)`([\w/]+\.(?:py|js))`", text(ROOT / "docs" / f"{name}.md"))
    assert not [path for path in modules if not (ROOT / "xla_nb" / path).exists()]


def test_what_is_named_beside_a_module_is_in_it() -> None:
    page = ROOT / "docs" / "how-it-works.md"
    glossary = re.findall(r"\| `(\w+)` \| \[[^]]*\]\(([^)]*)\)", text(page))
    prose = re.findall(r"`(\w+)` in\s\[[^]]*\]\(([^)]*\.\w+)\)", text(page))
    assert glossary and prose
    for name, path in [*glossary, *prose]:
        assert re.search(rf"\b{name}\b", (page.parent / path).read_text()), f"{path} has no {name}"


def test_every_test_that_is_named_for_reliability_exists() -> None:
    table = text(ROOT / "docs" / "reliability.md").partition("## ")[0]
    names = re.findall(r"[\w/]*\btest_\w+", table)
    assert names
    assert not [name for name in names if not (ROOT / "tests" / f"{name}.py").exists()]
