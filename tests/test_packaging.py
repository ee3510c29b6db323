"""The wheel in an empty environment: it installs, imports and loads in IPython without torch."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
UV = Path(sys.executable).with_name("uv")

SESSION = """
from IPython.core.interactiveshell import InteractiveShell
import importlib.util, sys

shell = InteractiveShell.instance()
shell.run_line_magic("load_ext", "xla_nb")
assert shell.find_cell_magic("xla_spawn"), "no %%xla_spawn"
assert shell.find_line_magic("xla_config"), "no %xla_config"
assert importlib.util.find_spec("torch") is None, "torch was installed with it"
import xla_nb
print(xla_nb.__version__, xla_nb.__file__)
"""


def run(*command: object, cwd: Path) -> str:
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "-o", folder, ROOT, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


def install(environment: Path, wheel: Path) -> Path:
    """Install only the wheel and its dependencies in a new environment; return its Python."""
    python = environment / "bin" / "python"
    if UV.exists():
        run(UV, "venv", "--quiet", "--python", sys.executable, environment, cwd=wheel.parent)
        run(UV, "pip", "install", "--quiet", "--python", python, wheel, cwd=wheel.parent)
    else:
        run(sys.executable, "-m", "venv", environment, cwd=wheel.parent)
        run(python, "-m", "pip", "install", "--quiet", wheel, cwd=wheel.parent)
    return python


@pytest.mark.slow
def test_the_wheel_loads_without_torch(wheel: Path, tmp_path: Path) -> None:
    python = install(tmp_path / "venv", wheel)
    version, file = run(python, "-c", SESSION, cwd=tmp_path).splitlines()[-1].split()
    assert version in wheel.name
    assert Path(file).is_relative_to(tmp_path / "venv")


def test_the_wheel_contains_only_the_package(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert len(tops) == 2, tops  # xla_nb and its .dist-info
    assert "xla_nb/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_wheel_contains_the_files_of_the_panel(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {f"xla_nb/views/panel/panel.{kind}" for kind in ("js", "css")} <= names


def test_pinned_requirements_name_no_registry() -> None:
    for file in (ROOT / "requirements").iterdir():
        assert "://" not in file.read_text(), file
