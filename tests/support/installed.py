"""Tests of what works with a package, skipped where it is not installed."""

import importlib.util

import pytest


def need(package: str, whole_file: bool = False) -> None:
    """Skip the test, or the file, without `package`. Unlike `pytest.importorskip` this imports
    nothing: accelerate brings torch_xla along, seven seconds of CPU that only kernels need."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed", allow_module_level=whole_file)
