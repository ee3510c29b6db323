"""Checks, without importing anything, that the installed torchax works here.

torch_xla's wheel contains an old torchax in the same folder as the real one; which of them is there
depends on what was installed last.
"""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

from xla_nb.errors import LaunchError
from xla_nb.wording import listed

#: Versions that work together; the test suite runs with the first of each.
WORKING = {"torchax": ("0.0.13",), "torch": ("2.9",), "jax": ("0.7.1",), "jaxlib": ("0.7.1",)}

INSTALL = (
    "`pip install 'torch==2.9.*' 'torch_xla==2.9.*' 'jax==0.7.1' 'jaxlib==0.7.1'`, then "
    "`pip install --force-reinstall --no-deps torchax==0.0.13`"
)


def check_versions() -> None:
    """Raise `LaunchError` if torchax cannot work, with the commands that install what does."""
    versions = {name: _version(name) for name in WORKING}
    missing = [name for name, version in versions.items() if version is None]
    if missing:
        raise _refusal(f"needs {listed(missing)}, which {_are(missing)} not installed", versions)
    wrong = [name for name, version in versions.items() if not _works(name, version or "")]
    if wrong:
        needs = listed([f"{name} {WORKING[name][0]}" for name in wrong])
        raise _refusal(f"needs {needs}", versions)
    imported = _imported_version()
    if imported != versions["torchax"]:
        raise _refusal(
            "would import the old torchax of torch_xla's wheel: torch_xla was installed after "
            "torchax and overwrote its files",
            versions,
        )


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _works(name: str, version: str) -> bool:
    """Whether it is a working version or a later patch of one; after a "+" comes the build."""
    release = version.partition("+")[0]
    return any(release == works or release.startswith(works + ".") for works in WORKING[name])


def _imported_version() -> str | None:
    """The version in the files that an import would load; the old torchax has 0.0.6 or less."""
    initial = Path(str(metadata.distribution("torchax").locate_file("torchax/__init__.py")))
    try:
        match = re.search(r'^__version__ = "([^"]+)"', initial.read_text(), re.MULTILINE)
    except OSError:
        return None
    return match.group(1) if match else None


def _refusal(problem: str, versions: dict[str, str | None]) -> LaunchError:
    here = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    return LaunchError(
        f"--runtime torchax {problem} (installed: {here or 'none of it'}). Run {INSTALL}."
    )


def _are(names: list[str]) -> str:
    return "is" if len(names) == 1 else "are"
