"""Kernels of these tests have fork servers that are started, as a user's are."""

import pytest

from tests.support.kernel import Notebook


@pytest.fixture(autouse=True)
def started_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Notebook, "servers", None)
