"""Files and folders private to one user, whatever the umask and whatever exists there."""

import os
import socket

import pytest

from xla_nb.record import private


@pytest.fixture(params=[0o000, 0o022])
def umask(request):
    before = os.umask(request.param)
    yield
    os.umask(before)


def mode(path):
    return path.stat().st_mode & 0o7777


def test_folders_are_private(tmp_path, umask):
    private.own_folder(tmp_path / "a" / "b" / "c")
    assert mode(tmp_path / "a" / "b" / "c") == 0o700


def test_files_are_private(tmp_path, umask):
    path, empty = tmp_path / "file", tmp_path / "empty"
    private.write(path, b"one")
    private.touch(empty)
    assert (mode(path), mode(empty), private.read(path)) == (0o600, 0o600, b"one")


def test_existing_folder_is_made_private_but_its_parents_are_not(tmp_path):
    folder = tmp_path / "above" / "home"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    folder.parent.chmod(0o755)
    private.own_folder(folder)
    assert (mode(folder), mode(folder.parent)) == (0o700, 0o755)


def test_folder_of_another_user_is_rejected_with_its_path(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(PermissionError, match=f"{tmp_path} belongs to .*, not to "):
        private.own_folder(tmp_path)


@pytest.mark.parametrize("target", ["nowhere/state", "link"], ids=["dangling", "to itself"])
@pytest.mark.parametrize("below", ["", "xla_nb", "xla_nb/runs"])
def test_folder_below_a_broken_link_cannot_be_created(tmp_path, target, below):
    (tmp_path / "link").symlink_to(tmp_path / target)
    with pytest.raises(OSError):
        private.own_folder(tmp_path / "link" / below)
    assert [path.name for path in tmp_path.iterdir()] == ["link"]


def test_folder_cannot_be_created_where_the_system_allows_none():
    with pytest.raises(FileNotFoundError):
        private.own_folder(private.Path("/proc/self/x/xla_nb"))


def test_touching_a_file_updates_its_modification_time(tmp_path):
    private.touch(tmp_path / "file")
    os.utime(tmp_path / "file", (1, 1))
    private.touch(tmp_path / "file")
    assert (tmp_path / "file").stat().st_mtime > 1


def odd_file(kind, path):
    match kind:
        case "a FIFO":
            os.mkfifo(path)
        case "a symbolic link":
            path.with_name("target").write_text("theirs")
            path.symlink_to("target")
        case "a socket":
            with socket.socket(socket.AF_UNIX) as made:
                made.bind(str(path))
        case "a folder":
            path.mkdir()


@pytest.mark.parametrize("kind", ["a FIFO", "a symbolic link", "a socket", "a folder"])
def test_reading_a_special_file_raises_without_blocking(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)  # a socket's name must be short
    path = private.Path("odd")
    odd_file(kind, path)
    with pytest.raises(OSError):
        private.read(path)


@pytest.mark.parametrize(
    ("given", "shared"), [(0o600, False), (0o644, False), (0o664, True), (0o606, True)]
)
def test_file_that_others_can_write_is_not_ours(tmp_path, given, shared):
    path = tmp_path / "file"
    path.write_text("")
    path.chmod(given)
    assert bool(private.why_not_ours(path)) is shared
    assert not shared or f"(mode {given:04o})" in private.why_not_ours(path)


def test_file_of_another_user_is_not_ours(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_text("")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert f"{path} belongs to" in private.why_not_ours(path)
