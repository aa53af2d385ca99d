"""A replica of the journal is never torn, nor a mix of two histories, nor shortened by sending."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast import lines
from holdfast.agent.journal_replica import JournalReplica
from holdfast.messages import Keep, Kept


def sealed(*documents: bytes, after: tuple[bytes, ...] = ()) -> tuple[bytes, ...]:
    """Lines with their checksums, which follow others."""
    found: list[bytes] = []
    checksum = lines.stated(after[-1]) if after else 0
    for document in documents:
        assert checksum is not None
        line = bytearray(document)
        checksum = lines.seal(line, checksum)
        found.append(bytes(line))
    return tuple(found)


OLD = sealed(*(b'{"old":%d}' % n for n in range(6)))
OTHER = sealed(b'{"other":3}', after=OLD[:3])
NEW = sealed(*(b'{"new":%d}' % n for n in range(6)))
MORE = sealed(b'{"more":6}', after=OLD)


def held(replica: JournalReplica) -> bytes:
    """Everything, put together."""
    return b"".join(part.data for part in replica.copy())


def full() -> JournalReplica:
    """Holds all of the old history, in term 3."""
    replica = JournalReplica()
    assert replica.keep(Keep(first=0, lines=OLD, term=3)) == Kept(seq=5, term=3)
    return replica


def test_an_empty_copy_is_one_empty_part() -> None:
    (part,) = JournalReplica().copy()
    assert (part.data, part.size, JournalReplica().seq) == (b"", 0, -1)


def test_the_same_lines_from_a_newer_controller_change_nothing_and_shorten_nothing() -> None:
    replica = full()
    assert replica.keep(Keep(first=0, lines=OLD[:2], term=4)) == Kept(seq=1, term=4)
    assert held(replica) == b"".join(OLD)
    assert (replica.seq, replica.term) == (5, 3), "its last line is still of term 3"


def test_from_the_first_line_that_differs_on_the_newer_history_holds() -> None:
    replica = full()
    assert replica.keep(Keep(first=2, lines=(OLD[2], *OTHER), term=4)) == Kept(seq=3, term=4)
    assert held(replica) == b"".join((*OLD[:3], *OTHER))
    assert (replica.seq, replica.term) == (3, 4)


def test_a_controller_that_was_replaced_is_told_so_and_changes_nothing() -> None:
    replica = full()
    replica.keep(Keep(first=6, lines=MORE, term=4))
    before = held(replica)
    assert replica.keep(Keep(first=0, lines=NEW, term=3)) == Kept(seq=6, term=4)
    assert held(replica) == before


def test_what_is_no_line_is_not_taken() -> None:
    damaged = MORE[0].replace(b"more", b"mose")
    for bad in (b"", b"{}", b"{}\n", b"{}\n{}\n", b"\n{}", OLD[5], *MORE, *OTHER, damaged):
        replica = full()
        assert replica.keep(Keep(first=6, lines=(*MORE, bad), term=3)) == Kept(seq=5, term=3)
        assert replica.keep(Keep(first=6, lines=(damaged,), term=3)) == Kept(seq=5, term=3)
        assert replica.keep(Keep(first=-1, lines=OLD, term=3)) == Kept(seq=5, term=3)
        assert held(replica) == b"".join(OLD)


def test_lines_without_checksums_are_kept_of_a_journal_that_has_none() -> None:
    """The controller may be of the version before, and later be replaced by a newer one."""
    replica = JournalReplica()
    header, entry = b'{"journal":1,"holdfast":"0"}\n', b'{"seq":1}\n'
    assert replica.keep(Keep(first=0, lines=(header,), term=1)) == Kept(seq=0, term=1)
    assert replica.keep(Keep(first=1, lines=(entry,), term=1)) == Kept(seq=1, term=1)
    assert replica.keep(Keep(first=0, lines=OLD, term=2)) == Kept(seq=5, term=2)
    assert held(replica) == b"".join(OLD)


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 4)), max_size=20))
def test_any_order_of_parts_leaves_a_beginning_of_the_journal(parts: list[tuple[int, int]]) -> None:
    replica = JournalReplica()
    for first, count in parts:
        lines = OLD[first : first + count]
        before = replica.seq
        kept = replica.keep(Keep(first=first, lines=lines, term=1))
        gap = first > before + 1
        assert kept.seq == (before if gap else first + len(lines) - 1)
        assert replica.seq == max(before, -1 if gap else kept.seq)
        assert held(replica) == b"".join(OLD[: replica.seq + 1])
