"""Whether the torchax that would be imported is one that works here.

The wheel of torch_xla brings an old torchax of its own, in the same folder as the real one: which
of them is there depends on what was installed last. The rule: nothing is imported to find out.
"""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

from xla_nb.errors import LaunchError
from xla_nb.wording import listed

#: What works together: the test suite runs with the first of each.
WORKING = {"torchax": ("0.0.13",), "torch": ("2.9",), "jax": ("0.7.1",), "jaxlib": ("0.7.1",)}

INSTALL = (
    "pip install 'torch==2.9.*' 'torch_xla==2.9.*' 'jax==0.7.1' 'jaxlib==0.7.1', and after that: "
    "pip install --force-reinstall --no-deps torchax==0.0.13"
)


def check_versions() -> None:
    """Raise `LaunchError` where torchax cannot work, with what to install."""
    found = {name: _version(name) for name in WORKING}
    missing = [name for name, version in found.items() if version is None]
    if missing:
        raise _refusal(f"needs {listed(missing)}, which {_are(missing)} not installed", found)
    wrong = [name for name, version in found.items() if not _works(name, version or "")]
    if wrong:
        needs = listed([f"{name} {WORKING[name][0]}" for name in wrong])
        raise _refusal(f"needs {needs} here", found)
    imported = _imported_version()
    if imported != found["torchax"]:
        raise _refusal(
            "would import the old torchax that is part of torch_xla's wheel: torch_xla was "
            "installed after torchax and wrote over its files",
            found,
        )


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _works(name: str, version: str) -> bool:
    """Whether it is a working version or a later fix of one; what follows a "+" is the build."""
    release = version.partition("+")[0]
    return any(release == known or release.startswith(known + ".") for known in WORKING[name])


def _imported_version() -> str | None:
    """What the files say that an import would find; the old torchax says 0.0.6 or less."""
    initial = Path(str(metadata.distribution("torchax").locate_file("torchax/__init__.py")))
    try:
        said = re.search(r'^__version__ = "([^"]+)"', initial.read_text(), re.MULTILINE)
    except OSError:
        return None
    return said.group(1) if said else None


def _refusal(what: str, found: dict[str, str | None]) -> LaunchError:
    here = ", ".join(f"{name} {version}" for name, version in found.items() if version)
    return LaunchError(
        f"the runtime torchax {what} (there is {here or 'none of it'}). What to do: {INSTALL}"
    )


def _are(names: list[str]) -> str:
    return "is" if len(names) == 1 else "are"
