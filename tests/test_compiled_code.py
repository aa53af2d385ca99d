"""What compilers have left: which files may travel, where they may lie, and for which machine."""

import os
from pathlib import Path

import pytest

from holdfast import compiled_code
from holdfast.compiled_code import CompiledFile


def write(folder: Path, name: str, content: bytes = b"code", at: int = 0) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    if at:
        os.utime(path, ns=(at, at))


def test_what_is_listed_is_whole_files_of_compilers_the_newest_first(tmp_path: Path) -> None:
    write(tmp_path, "inductor/ab/cab.so", at=2)
    write(tmp_path, "triton/k3/kernel.json", at=3)
    write(tmp_path, "jax/jit_f-cache", at=1)
    for left in ("cuda/index", "inductor/locks/a.lock", "inductor/ab/.7.9.tmp", "inductor/x.lock"):
        write(tmp_path, left)
    (tmp_path / "inductor" / "link").symlink_to("/etc/passwd")
    assert [file.name for file in compiled_code.listed(tmp_path)] == [
        "triton/k3/kernel.json",
        "inductor/ab/cab.so",
        "jax/jit_f-cache",
    ]
    assert [file.name for file in compiled_code.listed(tmp_path, most_bytes=9)] == [
        "triton/k3/kernel.json",
        "inductor/ab/cab.so",
    ]


def test_the_same_files_have_the_same_stamp_wherever_and_whenever_they_were_made(
    tmp_path: Path,
) -> None:
    for home, at in (("a", 1), ("b", 2)):
        write(tmp_path / home, "inductor/ab/cab.so", at=at)
    one, other = (compiled_code.stamp(compiled_code.listed(tmp_path / home)) for home in "ab")
    assert one == other
    write(tmp_path / "b", "inductor/ab/cxy.so")
    assert compiled_code.stamp(compiled_code.listed(tmp_path / "b")) != one
    assert compiled_code.stamp(()) == ""


@pytest.mark.parametrize(
    "name",
    [
        *("/etc/passwd", "../inductor/a", "inductor/../../a", "inductor/./a", "inductor//a"),
        *("cuda/a", "inductor", "", "a/b", "inductor/.hidden", "inductor/a\nb", "inductor/a\0"),
        *("inductor/locks/a", "inductor/a.lock", "inductor/" + "d/" * 9 + "a"),
    ],
)
def test_a_name_leads_nowhere_but_into_the_folder(tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match=r"name|unfinished"):
        compiled_code.place(tmp_path, name)


def test_a_link_in_the_folder_is_not_followed_out_of_it(tmp_path: Path) -> None:
    folder, outside = tmp_path / "compiled", tmp_path / "outside"
    (folder / "inductor").mkdir(parents=True)
    outside.mkdir()
    (folder / "inductor" / "ab").symlink_to(outside)
    with (
        pytest.raises(ValueError, match="outside"),
        compiled_code.arriving(folder, CompiledFile("inductor/ab/c.so", 1, 1, False)),
    ):
        pass
    assert not list(outside.iterdir())


def test_what_arrives_is_there_once_it_is_whole_and_replaces_nothing(tmp_path: Path) -> None:
    file = CompiledFile("inductor/ab/c.so", 4, 7, True)
    with pytest.raises(TypeError), compiled_code.arriving(tmp_path, file) as opened:
        opened.write("no bytes")  # type: ignore[call-overload]
    assert compiled_code.lacking(tmp_path, [file]) == [file]
    for content in (b"ours", b"late"):
        with compiled_code.arriving(tmp_path, file) as opened:
            opened.write(content)
    path = tmp_path / file.name
    assert path.read_bytes() == b"ours" and os.access(path, os.X_OK)
    assert [one.name for one in path.parent.iterdir()] == ["c.so"]
    assert compiled_code.listed(tmp_path) == (file,) and not compiled_code.lacking(tmp_path, [file])


def test_a_folder_is_known_again_wherever_it_is_seen(tmp_path: Path) -> None:
    (tmp_path / "seen").symlink_to(tmp_path / "one")
    one, again, seen, other = (
        compiled_code.identity(tmp_path / name) for name in ("one", "one", "seen", "other")
    )
    assert one == again == seen != other
    assert compiled_code.machine() == compiled_code.machine()
