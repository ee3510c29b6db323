"""The text that saved HTML shows."""

from __future__ import annotations

import re
from html import unescape
from html.parser import HTMLParser


def words(html: str) -> str:
    """The text of HTML, with the alternative text of images."""
    told = re.sub(r'<img[^>]* alt="([^"]*)"[^>]*>', r" \1 ", html)
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", told)).split())


def rows(html: str) -> list[list[str]]:
    """The cells of the first table, by row."""
    found: list[list[str]] = []

    class Table(HTMLParser):
        def handle_starttag(self, tag: str, attrs: object) -> None:
            if tag == "tr":
                found.append([])
            elif tag in ("td", "th"):
                found[-1].append("")

        def handle_data(self, data: str) -> None:
            if found and found[-1]:
                found[-1][-1] += data

    Table(convert_charrefs=True).feed(html.partition("</table>")[0])
    return found
