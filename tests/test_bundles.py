"""A bundle of code is taken only if it is what its name says, and touches only its own folder."""

import gzip
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast import bundles
from holdfast.bundles import bundle, digest, extract, keep, unpacked
from holdfast.errors import Error


def archive(*entries: tuple[tarfile.TarInfo, bytes]) -> bytes:
    found = io.BytesIO()
    with tarfile.open(fileobj=found, mode="w:gz") as tar:
        for entry, content in entries:
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return found.getvalue()


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    found = tarfile.TarInfo(name)
    found.type, found.linkname = kind, link
    return found


def test_what_is_packed_is_unpacked_and_what_can_be_executed_still_can(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "pkg").mkdir(parents=True)
    (source / "train.py").write_text("print(1)\n")
    (source / "pkg" / "run.sh").write_text("true\n")
    (source / "pkg" / "run.sh").chmod(0o755)
    folder = tmp_path / "code"
    name = keep(bundle(source), folder)
    target = unpacked(folder, name)
    assert target == folder / name == unpacked(folder, name)
    assert (target / "train.py").read_text() == "print(1)\n"
    assert (target / "pkg" / "run.sh").stat().st_mode & 0o100
    assert not (target / "train.py").stat().st_mode & 0o177
    assert sorted(path.name for path in folder.iterdir()) == [name, f"{name}.tar.gz"]


def test_a_link_is_followed_inside_the_folder_only_and_never_in_a_circle(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "pkg").mkdir(parents=True)
    (source / "train.py").write_text("x")
    (source / "pkg" / "same.py").symlink_to("../train.py")
    name = keep(bundle(source), tmp_path / "code")
    assert (unpacked(tmp_path / "code", name) / "pkg" / "same.py").read_text() == "x"
    (source / "pkg" / "up").symlink_to("..")
    with pytest.raises(Error, match="cannot be shipped") as circle:
        bundle(source)
    assert "a folder that it lies in" in circle.value.why
    (source / "pkg" / "up").unlink()
    (source / "other").mkdir()
    (source / "pkg" / "there").symlink_to("../other")
    (source / "other" / "back").symlink_to("../pkg")
    with pytest.raises(Error, match="cannot be shipped") as two:
        bundle(source)
    assert "a folder that it lies in" in two.value.why
    (source / "other" / "back").unlink()
    (source / "pkg" / "out").symlink_to(tmp_path)
    with pytest.raises(Error) as outside:
        bundle(source)
    assert "outside the folder" in outside.value.why


def changing(change: Callable[[], object]) -> Callable[[Path], bytes]:
    """Reads files, and changes others of the folder while it does so."""

    def read(path: Path) -> bytes:
        with path.open("rb") as file:
            found = file.read()
        change()
        return found

    return read


@pytest.mark.parametrize("name", ["a.py", "z.py", "new.py"])
def test_sources_that_change_while_they_are_read_are_no_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for known in ("a.py", "z.py"):
        (tmp_path / known).write_text("x = 1\n")
    change = changing(lambda: (tmp_path / name).write_text("x = 123\n"))
    monkeypatch.setattr(Path, "read_bytes", change)
    with pytest.raises(Error, match=rf"{name} cannot be shipped") as refused:
        bundle(tmp_path)
    assert refused.value.why == "it changed while the folder was read"


def test_what_is_written_and_deleted_beside_the_sources_meanwhile_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for known in ("a.py", "long.log", "short.log", "z.tmp"):
        (source / known).write_text("text\n")

    def change() -> None:
        (source / "long.log").write_text("text\ntext\n")
        (source / "short.log").write_text("")
        (source / "z.tmp").unlink(missing_ok=True)

    monkeypatch.setattr(Path, "read_bytes", changing(change))
    extract(bundle(source), tmp_path / "code")
    found = {path.name: path.read_text() for path in (tmp_path / "code").iterdir()}
    assert found == {"a.py": "text\n", "long.log": "text\ntext\n", "short.log": ""}


def test_what_tar_packs_is_unpacked_too(tmp_path: Path) -> None:
    """`tar -czf code.tar.gz -C src .` has the folder itself as its first entry."""
    data = archive((entry("./", tarfile.DIRTYPE), b""), (entry("./train.py"), b"x"))
    extract(data, tmp_path / "code")
    assert [path.name for path in (tmp_path / "code").iterdir()] == ["train.py"]


def test_what_cannot_be_read_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreadable(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    (tmp_path / "train.py").write_text("x")
    monkeypatch.setattr(Path, "read_bytes", unreadable)
    with pytest.raises(Error, match=r"train\.py cannot be shipped"):
        bundle(tmp_path)


@pytest.mark.parametrize(
    "bad",
    [
        entry("/etc/passwd"),
        entry("../out"),
        entry("a/../../out"),
        entry("link", tarfile.SYMTYPE, "/etc/passwd"),
        entry("hard", tarfile.LNKTYPE, "train.py"),
        entry("null", tarfile.CHRTYPE),
        entry("pipe", tarfile.FIFOTYPE),
        entry("."),
    ],
    ids=lambda one: one.name,
)
def test_nothing_but_plain_files_inside_the_folder_is_taken(
    tmp_path: Path, bad: tarfile.TarInfo
) -> None:
    name = keep(archive((entry("train.py"), b"x"), (bad, b"")), tmp_path / "code")
    with pytest.raises(ValueError, match="in the bundle"):
        unpacked(tmp_path / "code", name)
    assert [path.name for path in tmp_path.rglob("*")] == ["code", f"{name}.tar.gz"]


def test_a_bundle_that_is_not_what_its_name_says_is_refused(tmp_path: Path) -> None:
    name = keep(archive((entry("train.py"), b"x")), tmp_path / "code")
    (tmp_path / "code" / f"{name}.tar.gz").write_bytes(archive((entry("train.py"), b"y")))
    with pytest.raises(ValueError, match="has SHA-256"):
        unpacked(tmp_path / "code", name)


@pytest.mark.parametrize("data", [b"", b"no archive", gzip.compress(b"no archive" * 100)])
def test_a_bundle_that_is_none_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(ValueError, match="cannot be read"):
        extract(data, tmp_path / "new")


def test_a_small_bundle_of_large_files_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundles, "FOLDER_BYTES", 1_000)
    data = archive((entry("a"), b"0" * 600), (entry("b"), b"0" * 600))
    with pytest.raises(ValueError, match="larger than"):
        extract(data, tmp_path / "new")
    assert not (tmp_path / "new" / "b").exists()
    assert len(digest(data)) == 64
