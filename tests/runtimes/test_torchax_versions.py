"""The check of the installed torchax, from the metadata and files alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from xla_nb.errors import LaunchError
from xla_nb.runtimes import torchax_versions

GOOD = {"torchax": "0.0.13", "torch": "2.9.0+cpu", "jax": "0.7.1", "jaxlib": "0.7.1"}


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on sys.path where only the distributions of GOOD are installed."""
    monkeypatch.setattr("sys.path", [str(tmp_path)])
    for name, version in GOOD.items():
        install(tmp_path, name, version)
    write_files(tmp_path, "0.0.13")
    return tmp_path


def install(site: Path, name: str, version: str) -> None:
    info = site / f"{name}.dist-info"
    info.mkdir(exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def write_files(site: Path, version: str) -> None:
    """The folder torchax/, of the real package or of torch_xla's wheel."""
    (site / "torchax").mkdir(exist_ok=True)
    text = f'import flax\n\n__version__ = "{version}"\nVERSION = __version__\n'
    (site / "torchax/__init__.py").write_text(text)


def refused() -> str:
    with pytest.raises(LaunchError) as caught:
        torchax_versions.check_versions()
    assert "Run `pip install 'torch==2.9.*'" in str(caught.value)
    return str(caught.value)


def test_versions_that_work_together_pass(site: Path) -> None:
    torchax_versions.check_versions()


def test_a_missing_package_is_named(site: Path) -> None:
    (site / "jax.dist-info/METADATA").unlink()
    (site / "jax.dist-info").rmdir()
    assert "needs jax, which is not installed (installed: torchax 0.0.13, torch 2.9.0" in refused()


def test_the_torchax_of_torch_xlas_wheel_does_not_count_as_installed(site: Path) -> None:
    (site / "torchax.dist-info/METADATA").unlink()
    (site / "torchax.dist-info").rmdir()
    write_files(site, "0.0.6")
    assert "needs torchax, which is not installed" in refused()


def test_a_torchax_overwritten_by_torch_xla_is_refused(site: Path) -> None:
    write_files(site, "0.0.6")
    assert "torch_xla was installed after torchax" in refused()


@pytest.mark.parametrize(
    ("name", "version"),
    [("torch", "2.13.0"), ("jax", "0.8.0"), ("jaxlib", "0.7.2"), ("torchax", "0.0.11")],
)
def test_another_version_is_refused_by_name(site: Path, name: str, version: str) -> None:
    install(site, name, version)
    assert f"needs {name} {torchax_versions.WORKING[name][0]} (installed: " in refused()
