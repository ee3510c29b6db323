"""Named shared memory on ranks, which are not descendants of the notebook process."""

import subprocess
import sys
from multiprocessing import shared_memory
from pathlib import Path

import pytest

BEGIN = (
    "from multiprocessing.shared_memory import SharedMemory\n"
    "from xla_nb.rank.patches import leave_segments_to_their_makers\n"
    "leave_segments_to_their_makers()\n"
)


def run(*lines):
    """The stderr output of a process with these lines and of its resource tracker."""
    script = BEGIN + "\n".join(lines)
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stderr


@pytest.fixture
def segment():
    memory = shared_memory.SharedMemory(create=True, size=80)
    yield memory
    memory.close()
    memory.unlink()


def exists(name):
    return Path("/dev/shm", name.lstrip("/")).exists()


@pytest.mark.parametrize("attach", ["SharedMemory({!r})", "SharedMemory(name={!r}, create=False)"])
def test_attached_segment_outlives_the_process(segment, attach):
    assert run(f"block = {attach.format(segment.name)}", "block.buf[0] = 5") == ""
    assert exists(segment.name)
    assert segment.buf[0] == 5


def test_segment_attached_by_a_spawned_process_outlives_it(segment, tmp_path):
    script = tmp_path / "module.py"
    script.write_text(
        "from multiprocessing import get_context, shared_memory\n"
        "from xla_nb.rank import loader\n"
        "loader.parcel = lambda path: type('Empty', (), {'open': lambda *_: {}})\n"
        "loader.restore(globals())\n"
        f"def work(): shared_memory.SharedMemory({segment.name!r}).close()\n"
        "if __name__ == '__main__':\n"
        "    child = get_context('spawn').Process(target=work)\n"
        "    child.start(); child.join()\n"
    )
    done = subprocess.run(
        [sys.executable, script],
        env={"XLA_NB_PARCEL": "", "PYTHONPATH": str(Path(__file__).parents[2])},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    assert exists(segment.name)


def test_process_can_unlink_an_attached_segment():
    memory = shared_memory.SharedMemory(create=True, size=80)
    assert run(f"SharedMemory({memory.name!r}).unlink()") == ""
    assert not exists(memory.name)
    memory.close()
    shared_memory.resource_tracker.unregister(memory._name, "shared_memory")


def test_created_segment_is_unlinked_when_the_process_ends(tmp_path):
    name = tmp_path / "name"
    told = run(
        f"block = SharedMemory(create=True, size=8); open({str(name)!r}, 'w').write(block.name)"
    )
    assert "1 leaked shared_memory object" in told
    assert not exists(name.read_text())


def test_created_and_unlinked_segment_is_no_longer_tracked():
    assert run("SharedMemory(None, True, 8).unlink()") == ""
