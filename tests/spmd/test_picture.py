"""Pictures unpickle without torch, use only HTML that notebooks keep, and list every device."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from typing import Any

import pytest

from xla_nb.spmd.picture import Drawing, Part, Picture, readable

Devices = Callable[..., Any]


class Tags(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.text = ""
        self.open: list[str] = []
        self.feed(html)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += f"{data}\n"


@pytest.fixture
def pictures(devices: Devices) -> dict[str, Any]:
    return {name: pickle.loads(pickled) for name, pickled in devices("pictures").items()}


def test_pictures_and_placements_unpickle_without_torch(devices: Devices) -> None:
    pickled = devices("pictures")
    script = (
        "import pickle, sys, xla_nb.spmd\n"
        "for each in pickle.load(sys.stdin.buffer).values(): print(pickle.loads(each))\n"
        "assert not {'torch', 'torch_xla', 'numpy'} & sys.modules.keys()"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script],
        input=pickle.dumps(pickled),
        capture_output=True,
        check=False,
    )
    assert not ran.stderr, ran.stderr.decode()


def test_every_part_lists_its_devices(pictures: dict[str, Any]) -> None:
    html = Tags(pictures["named"].html())
    for device in range(4):
        assert re.search(rf"^{device}$", html.text, re.M)
    assert str(pictures["named"]).splitlines() == [
        "4 devices, 28 B on each. Each part lists the devices that hold it.",
        "",
        "<b>&.weight",
        "3x5 float32, 4 parts, 24 B on each device",
        "┌────────────┬────────────┐",
        "│ 0          │ 1          │",
        "│ [0:2, 0:3] │ [0:2, 3:5] │",
        "├────────────┼────────────┤",
        "│ 2          │ 3          │",
        "│ [2:3, 0:3] │ [2:3, 3:5] │",
        "└────────────┴────────────┘",
        "",
        "<b>&.bias",
        "3 float32, 4 parts, 4 B on each device",
        "┌─────────┬─────────┬─────────┬─────────┐",
        "│ 0       │ 1       │ 2       │ 3       │",
        "│ [0:1]   │ [1:2]   │ [2:3]   │ nothing │",
        "└─────────┴─────────┴─────────┴─────────┘",
    ]


def test_copies_ties_and_identical_layers_are_drawn_once(pictures: dict[str, Any]) -> None:
    tied = str(pictures["tied"])
    assert "embed.weight = head.weight\n24x8 float32, 2 parts, 2 copies, 384 B on each" in tied
    stack = str(pictures["stack"])
    assert "layers.*.attention.qkv.weight (2 like this)" in stack
    assert "whole, 4 copies" in stack
    assert "layers.0" not in stack


def test_three_dimensional_and_unplaced_tensors_are_drawn(pictures: dict[str, Any]) -> None:
    assert "│ 2               │ 3               │\n│ [0:2, 2:4, 0:2] │ [0:2, 2:4, 2:4] │" in str(
        pictures["volume"]
    )
    assert "0 1 2 3" in str(pictures["tensor"])


def test_the_html_uses_only_what_untrusted_notebooks_keep(pictures: dict[str, Any]) -> None:
    for name in ("stack", "named", "tied", "volume", "tensor"):
        html = pictures[name]._repr_mimebundle_()["text/html"]
        tags = Tags(html)
        assert tags.tags == {"div", "span"}
        assert tags.attributes == {"style"}
        assert "var(" not in html
        assert "url(" not in html
    assert "<b>" not in pictures["named"].html()
    assert "&lt;b&gt;&amp;.weight" in pictures["named"].html()


def test_many_tensors_are_cut_off_and_many_devices_become_a_range() -> None:
    part = Part(tuple(range(16)), ((0, 4),))
    names = [f"{chr(97 + n // 26)}{chr(97 + n % 26)}" for n in range(70)]
    picture = Picture(tuple(Drawing(name, (4,), "int8", 4, (part,)) for name in names))
    assert "and 10 more, not drawn" in str(picture)
    assert "and 10 more, not drawn" in picture.html()
    assert "0 to 15" in str(picture)
    assert str(picture).startswith("16 devices, 280 B on each")


def test_bytes_have_a_suitable_unit() -> None:
    assert [readable(n) for n in (0, 1023, 1536, 3 << 20, 5 << 30)] == [
        "0 B",
        "1023 B",
        "1.5 KiB",
        "3 MiB",
        "5 GiB",
    ]
