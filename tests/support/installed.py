"""Skips tests that need a package which is not installed."""

import importlib.util

import pytest


def need(package: str, whole_file: bool = False) -> None:
    """Skip the test, or the whole file, if `package` is missing. Unlike `pytest.importorskip`, this
    imports nothing: accelerate would import torch_xla, which takes seven seconds of CPU and is only
    needed in kernels."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed", allow_module_level=whole_file)
