"""Kernels of these tests start their own fork servers, as a user's do."""

import pytest

from tests.support.kernel import Notebook


@pytest.fixture(autouse=True)
def started_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Notebook, "servers", None)
