"""Files that are no files never hang a command, and each error of the system has its own story."""

import errno
import os
from pathlib import Path

import pytest

from holdfast.errors import Error
from holdfast.files import open_plain, read_plain, require_proc, unusable, write_durable


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_file_is_not_read(tmp_path: Path, make: object) -> None:
    assert callable(make)
    make(tmp_path / "x")
    with pytest.raises(OSError, match=r"it is a (pipe|folder), not a file"):
        open_plain(tmp_path / "x")


def test_a_device_is_not_read() -> None:
    with pytest.raises(OSError, match="it is a device, not a file"):
        open_plain(Path("/dev/zero"))


def test_a_file_is_read_whole_or_not_at_all(tmp_path: Path) -> None:
    write_durable(tmp_path / "x", b"12345")
    assert read_plain(tmp_path / "x", 5) == b"12345"
    with pytest.raises(OSError, match="its size is 5 bytes, the limit is 4"):
        read_plain(tmp_path / "x", 4)


@pytest.mark.parametrize(
    ("number", "slug"),
    [
        (errno.ENOSPC, "disk-full"),
        (errno.EDQUOT, "disk-full"),
        (errno.EACCES, "home-unwritable"),
        (errno.EROFS, "home-unwritable"),
        (errno.EMFILE, "too-many-open-files"),
        (errno.EIO, "disk-failing"),
        (errno.ELOOP, "path-unusable"),
        (errno.ENOTDIR, "path-unusable"),
        (errno.ENAMETOOLONG, "path-unusable"),
        (errno.ENOMEM, "system-error"),
        (errno.ECONNREFUSED, "system-error"),
    ],
)
def test_an_error_of_the_system_has_its_own_story(number: int, slug: str) -> None:
    found = unusable(OSError(number, os.strerror(number), "/a b/c"))
    assert (found.slug, found.what) == (slug, "cannot use /a b/c")
    assert found.why == os.strerror(number)
    assert "/a b/c" not in found.help or "'/a b/c'" in found.help
    without = unusable(OSError(number, os.strerror(number)), "cannot create it")
    assert (without.slug, without.what) == (slug, "cannot create it")


def test_without_proc_or_with_that_of_another_namespace_it_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Found by hand: it was said that HOLDFAST_HOME should be set, because of /proc/meminfo."""
    require_proc()
    gone = FileNotFoundError(errno.ENOENT, "No such file or directory", "/proc/meminfo")
    assert unusable(gone).slug == "path-unusable"
    monkeypatch.setattr(os, "readlink", lambda _path: str(os.getpid() + 1))
    with pytest.raises(Error, match="another PID namespace") as raised:
        require_proc()
    assert raised.value.slug == "platform-unsupported"
    monkeypatch.undo()
    monkeypatch.setattr(os, "readlink", _missing)
    monkeypatch.setattr(os.path, "lexists", lambda _path: False)
    with pytest.raises(Error, match="it is not mounted"):
        require_proc()
    told = unusable(gone)
    assert told.slug == "platform-unsupported" and "/proc/meminfo" in told.why
    assert "HOLDFAST_HOME" not in told.help and "mount -t proc" in told.help


def _missing(path: str) -> str:
    raise FileNotFoundError(errno.ENOENT, "No such file or directory", path)


def test_the_help_is_about_what_there_is_of_a_path(tmp_path: Path) -> None:
    """Found by hand: it named a temporary file below one that was no folder."""
    (tmp_path / "file").touch()
    wanted = tmp_path / "file" / "jobs" / ".gpt.1a2b"
    with pytest.raises(NotADirectoryError) as raised:
        wanted.mkdir(parents=True)
    found = unusable(raised.value)
    assert (found.what, found.why) == (f"cannot use {tmp_path / 'file'}", "Not a directory")
    assert f"ls -ld {tmp_path / 'file'}   (" in found.help
    full = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(tmp_path / "new" / ".x.1a2b"))
    assert f"df -h {tmp_path}; df -i {tmp_path} " in unusable(full).help
