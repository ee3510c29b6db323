"""Training with popular libraries, in notebooks where the library or the program launches ranks.

`make test-libraries` installs all of them, in the versions of requirements/libraries.txt.
Elsewhere, only the files whose libraries are installed run.
"""

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.kernel import Notebook

NEEDS = {
    "test_accelerate.py": ("accelerate",),
    "test_lightning.py": ("lightning",),
    "test_timm.py": ("timm",),
    "test_torchmetrics.py": ("torchmetrics",),
    "test_transformers.py": ("transformers", "accelerate"),
}
collect_ignore = [
    file for file, names in NEEDS.items() if not all(map(importlib.util.find_spec, names))
]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker("published")


@pytest.fixture(scope="module")
def notebook() -> Iterator[Notebook]:
    """A kernel with the extension loaded, one per library."""
    kernel = Notebook(TOKENIZERS_PARALLELISM="false")
    kernel.ok("%load_ext xla_nb")
    yield kernel
    kernel.close()
