"""The chips of a machine, from its PCI devices and its accelerator type."""

import pytest

from xla_nb.errors import UsageError
from xla_nb.topology.chips import (
    accelerator_type,
    choose_device,
    count_chips,
    possible_ranks,
    process_bounds,
)

# accelerator type: (chips of the host, devices of a chip, host bounds, chips per host)
HOSTS = {
    "v2-8": (4, 2, "1,1,1", "2,2,1"),
    "v3-8": (4, 2, "1,1,1", "2,2,1"),
    "v4-8": (4, 1, "1,1,1", "2,2,1"),
    "v5litepod-1": (1, 1, "1,1,1", "1,1,1"),
    "v5litepod-8": (8, 1, "1,1,1", "2,4,1"),
    "v6e-8": (8, 1, "1,1,1", "2,4,1"),
}
POSSIBLE = {
    "v2-8": [2, 4, 8],
    "v3-8": [2, 4, 8],
    "v4-8": [1, 2, 4],
    "v5litepod-1": [1],
    "v5litepod-8": [1, 2, 4, 8],
    "v6e-8": [1, 2, 4, 8],
}


# --- chips of this machine ----------------------------------------------------------------------


def pci(root, *devices):
    for number, (vendor, model) in enumerate(devices):
        folder = root / f"0000:00:{number:02x}.0"
        folder.mkdir()
        (folder / "vendor").write_text(vendor + "\n")
        (folder / "device").write_text(model + "\n")
    return root


def test_count_chips_ignores_other_pci_devices(tmp_path):
    root = pci(tmp_path, ("0x8086", "0x0063"), ("0x1ae0", "0x0063"), ("0x1ae0", "0x0042"))
    assert count_chips(root) == 1
    assert count_chips(tmp_path / "missing") == 0


@pytest.mark.parametrize(
    ("model", "count", "expected"),
    [
        ("0x0027", 4, "v2-8"),
        ("0x005e", 4, "v4-8"),
        ("0x0063", 8, "v5litepod-8"),
        ("0x0063", 1, "v5litepod-1"),
        ("0x006f", 8, "v6e-8"),
        ("0x0056", 1, None),
    ],
)
def test_accelerator_type_is_derived_from_chips_unless_set(tmp_path, model, count, expected):
    root = pci(tmp_path, *[("0x1ae0", model)] * count)
    assert accelerator_type({}, root) == expected
    assert accelerator_type({"TPU_ACCELERATOR_TYPE": "v3-8"}, root) == "v3-8"


def test_accelerator_type_is_none_without_chips(tmp_path):
    assert accelerator_type({}, tmp_path) is None


@pytest.mark.parametrize(
    ("environ", "chips", "expected"),
    [
        ({}, 0, "CPU"),
        ({}, 8, "TPU"),
        ({"PJRT_DEVICE": "CPU"}, 8, "CPU"),
        ({"PJRT_DEVICE": "TPU"}, 1, "TPU"),
        ({"PJRT_DEVICE": ""}, 0, "CPU"),
    ],
)
def test_pjrt_device_decides_the_device_else_the_chips_do(environ, chips, expected):
    assert choose_device(environ, chips) == expected


@pytest.mark.parametrize(("wanted", "fix"), [("TPU", "pop"), ("CUDA", "TPU or CPU")])
def test_missing_or_unsupported_device_is_refused(wanted, fix):
    with pytest.raises(UsageError, match=fix):
        choose_device({"PJRT_DEVICE": wanted}, 0)


# --- numbers of ranks ---------------------------------------------------------------------------


@pytest.mark.parametrize("accelerator", HOSTS)
def test_possible_ranks_of_each_host_type(accelerator):
    assert possible_ranks(accelerator, HOSTS[accelerator][0]) == POSSIBLE[accelerator]


@pytest.mark.parametrize(
    ("accelerator", "chips", "n", "message"),
    [
        ("v5litepod-8", 8, 16, "1, 2, 4 or 8"),
        ("v5litepod-8", 8, 3, "1, 2, 4 or 8"),
        ("v4-8", 4, 8, "1, 2 or 4"),
        ("v5litepod-1", 1, 2, "1 chip of a v5litepod-1. Use 1"),
        ("v3-8", 4, 1, "2, 4 or 8. Each chip has two devices"),
        ("v4-16", 4, 2, "Omit -n"),
        (None, 4, 8, "4 chips. Use "),
    ],
)
def test_impossible_n_is_refused_with_possible_values(accelerator, chips, n, message):
    with pytest.raises(UsageError, match=message):
        process_bounds(accelerator, chips, n)


def test_process_bounds_of_multihost_slices_are_left_to_torch_xla():
    assert process_bounds("v4-16", 4, None) == {}
    assert process_bounds("v5litepod-16", 4, None) == {}
