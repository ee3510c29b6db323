"""Pictures unpickle without torch, and list every device."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from xla_nb.spmd.placed import Picture, Placed

Devices = Callable[..., Any]


@pytest.fixture(scope="module")
def pickled() -> dict[str, bytes]:
    return {}


@pytest.fixture
def pictures(devices: Devices, pickled: dict[str, bytes]) -> dict[str, Any]:
    pickled.update({} if pickled else devices("pictures"))
    return {name: pickle.loads(each) for name, each in pickled.items()}


def test_pictures_and_placements_unpickle_without_torch(
    pictures: dict[str, Any], pickled: dict[str, bytes]
) -> None:
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


def test_each_part_lists_its_devices(pictures: dict[str, Any]) -> None:
    assert str(pictures["named"]).splitlines() == [
        "4 devices, 28 B on each",
        "",
        "<b>&.weight",
        "3x5 float32, 24 B on each device",
        "  device 0: [0:2, 0:3]",
        "  device 1: [0:2, 3:5]",
        "  device 2: [2:3, 0:3]",
        "  device 3: [2:3, 3:5]",
        "",
        "<b>&.bias",
        "3 float32, 4 B on each device",
        "  device 0: [0:1]",
        "  device 1: [1:2]",
        "  device 2: [2:3]",
        "  device 3: nothing",
    ]


def test_copies_ties_and_identical_layers_appear_once(pictures: dict[str, Any]) -> None:
    tied, stack = str(pictures["tied"]), str(pictures["stack"])
    assert "embed.weight = head.weight\n24x8 float32, 384 B on each device\n" in tied
    assert "  devices 0, 2: [0:12, 0:8]\n  devices 1, 3: [12:24, 0:8]" in tied
    assert "layers.*.attention.qkv.weight (2 like this)" in stack
    assert "layers.0" not in stack
    assert "  device 2: [0:2, 2:4, 0:2]" in str(pictures["volume"])
    assert "  devices 0–3: [0:3]" in str(pictures["tensor"])


def test_long_lists_of_tensors_and_parts_are_truncated() -> None:
    parts = tuple(((number,), ((number, number + 1),)) for number in range(16))
    placed = Placed((16,), "int8", 1, parts)
    names = [f"{chr(97 + n // 26)}{chr(97 + n % 26)}" for n in range(70)]
    text = str(Picture({name: Placed(**{**vars(placed), "dtype": name}) for name in names}))
    assert text.startswith("16 devices, 70 B on each")
    assert "  and 8 more parts" in text
    assert text.endswith("and 10 more tensors")
