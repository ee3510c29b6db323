"""The check of the installed torchax, based on metadata and files only."""

from __future__ import annotations

from pathlib import Path

import pytest

from xla_nb.errors import LaunchError
from xla_nb.runtimes.torchax import check_versions

GOOD = {"torchax": "0.0.13", "torch": "2.9.0+cpu", "jax": "0.7.1", "jaxlib": "0.7.1"}
ON_A_GPU = {"torch": "2.11.0+cu130", "jax": "0.11.2", "jaxlib": "0.11.2"}


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


def uninstall(site: Path, name: str) -> None:
    (site / f"{name}.dist-info/METADATA").unlink()
    (site / f"{name}.dist-info").rmdir()


def refused() -> str:
    with pytest.raises(LaunchError) as caught:
        check_versions()
    assert "Run `pip install 'torch==2.9.*'" in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("others", [{}, ON_A_GPU])
def test_versions_tested_together_pass(site: Path, others: dict[str, str]) -> None:
    for name, version in others.items():
        install(site, name, version)
    assert check_versions() == ()


@pytest.mark.parametrize("name", ["jax", "torch"])
def test_missing_package_is_named(site: Path, name: str) -> None:
    uninstall(site, name)
    assert f"lacks {name} (installed: torchax 0.0.13, " in refused()


def test_ranks_have_only_jax_without_torchax(site: Path) -> None:
    (site / "torchax/__init__.py").unlink()
    (site / "torchax").rmdir()
    for name in ("torchax", "torch"):
        uninstall(site, name)
    (told,) = check_versions()
    assert told.startswith("torchax is not installed, so ranks have JAX only")


def test_torchax_from_the_torch_xla_wheel_does_not_count_as_installed(site: Path) -> None:
    uninstall(site, "torchax")
    write_files(site, "0.0.6")
    assert "lacks torchax (installed: torch 2.9.0" in refused()


def test_torchax_overwritten_by_torch_xla_is_rejected(site: Path) -> None:
    write_files(site, "0.0.6")
    assert "torch_xla was installed after torchax" in refused()


@pytest.mark.parametrize("version", ["2.13.0", "2.15.0+cpu"])
def test_torch_that_this_torchax_cannot_import_is_rejected(site: Path, version: str) -> None:
    install(site, "torch", version)
    assert "needs a torch older than 2.13 (installed: torchax 0.0.13, torch 2.1" in refused()


@pytest.mark.parametrize(
    ("name", "version"),
    [("torch", "2.12.0"), ("torch", "2.8.0"), ("jax", "0.8.0"), ("jaxlib", "0.7.2")],
)
def test_other_versions_are_accepted(site: Path, name: str, version: str) -> None:
    install(site, name, version)
    assert check_versions() == ()


def test_newer_torchax_may_support_a_newer_torch(site: Path) -> None:
    install(site, "torchax", "0.0.14")
    install(site, "torch", "2.13.0")
    write_files(site, "0.0.14")
    assert check_versions() == ()
