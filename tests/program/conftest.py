"""An empty notebook, and a folder whose modules it can import."""

import pytest

from tests.support.notebook_double import importable_folder, opened

notebook = pytest.fixture(opened)
local = pytest.fixture(importable_folder)
