"""A relay's log on disk: what was committed is there after any end of the process."""

import sqlite3
from pathlib import Path

import pytest

from kvevents.errors import ConfigError, TransportError
from kvevents.transport import Relay, Source
from kvevents.transport.picture import Position
from kvevents.transport.relay.backlog import Sent
from kvevents.transport.relay.journal import Journal


def sent(sequence: int, rank: int | None = 0) -> Sent:
    return Sent(sequence, b"payload %d" % sequence, rank, float(sequence))


def test_streams_come_back_as_they_were_left(tmp_path: Path) -> None:
    with Journal(tmp_path / "new" / "log") as journal:
        one, empty = journal.restore("w", None)
        other, _ = journal.restore("w", 1)
        assert (empty.compacted, empty.compacted_to, empty.recent, empty.position) == ([], -1, [], None)
        assert empty.is_sure
        journal.append(one, [sent(0), sent(1, None)], Position(5, b"d"))
        journal.append(other, [sent(0, 1)], None)
        journal.commit()
        journal.append(one, [sent(2, 7)], Position(6, b"e"))
        journal.commit()
        journal.note_endpoints(one, "tcp://h:1", "tcp://h:2")
    with Journal(tmp_path / "new" / "log") as journal:
        assert journal.restore("w", None)[0] == one
        back = journal.restore("w", None)[1]
        assert back.recent == [sent(0), sent(1, None), sent(2, 7)]
        assert (back.position, back.endpoint, back.replay_endpoint) == (Position(6, b"e"), "tcp://h:1", "tcp://h:2")
        assert journal.restore("w", 1)[1].recent == [sent(0, 1)]
        assert journal.restore("w", 1)[1].position is None


def test_what_was_not_committed_is_not_there(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    stream, _ = journal.restore("w", 0)
    journal.append(stream, [sent(0)], None)
    journal.commit()
    journal.append(stream, [sent(1)], None)
    journal.roll_back()
    journal.append(stream, [sent(2)], None)
    journal.close()  # without a commit, as when the process is killed
    with Journal(tmp_path) as again:
        assert again.restore("w", 0)[1].recent == [sent(0)]


def test_a_torn_end_is_cut_off(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        stream, _ = journal.restore("w", 0)
        for number in range(20):
            journal.append(stream, [sent(number)], Position(number, b""))
            journal.commit()
        copy = tmp_path / "torn"
        copy.mkdir()
        (copy / "relay.db").write_bytes((tmp_path / "relay.db").read_bytes())
        log = (tmp_path / "relay.db-wal").read_bytes()
        (copy / "relay.db-wal").write_bytes(log[: len(log) - 1_000])
    with Journal(copy) as torn:
        back = torn.restore("w", 0)[1]
        assert back.recent == [sent(number) for number in range(len(back.recent))]
        assert 10 < len(back.recent) < 20
        assert back.position == Position(len(back.recent) - 1, b"")


def test_compaction_replaces_what_it_stands_for(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        stream, _ = journal.restore("w", 0)
        journal.append(stream, [sent(number) for number in range(300)], None)
        journal.commit()
        journal.compact(stream, 249, [(0, b"first"), (None, b"second")])
        journal.append(stream, [sent(300)], None)
        journal.commit()
        back = journal.restore("w", 0)[1]
        assert (back.compacted, back.compacted_to) == ([(0, b"first"), (None, b"second")], 249)
        assert back.recent == [sent(number) for number in range(250, 301)]
        journal.compact(stream, 299, [(0, b"third")])
        assert journal.restore("w", 0)[1].compacted == [(0, b"third")]
        journal.sync()


def test_a_compaction_that_did_not_come_to_its_end_is_forgotten(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        stream, _ = journal.restore("w", 0)
        journal.append(stream, [sent(0)], None)
        journal.commit()

        def broken() -> list[tuple[int | None, bytes]]:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            journal.compact(stream, 0, (pair for part in ([(0, b"half")], broken()) for pair in part))
    with Journal(tmp_path) as again:
        back = again.restore("w", 0)[1]
        assert (back.compacted, back.compacted_to, back.recent) == ([], -1, [sent(0)])


def test_what_is_synced_is_still_there_and_the_log_before_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvevents.transport.relay.journal._CHECKPOINT_BYTES", 1)
    for most in (1 << 30, 1):
        monkeypatch.setattr("kvevents.transport.relay.journal._MOST_WAL_BYTES", most)
        with Journal(tmp_path / str(most)) as journal:
            stream, _ = journal.restore("w", 0)
            journal.append(stream, [sent(number) for number in range(50)], None)
            journal.commit()
            journal.sync()
            assert ((tmp_path / str(most) / "relay.db-wal").stat().st_size == 0) == (most == 1)
            journal.append(stream, [sent(50)], None)
            journal.commit()
        with Journal(tmp_path / str(most)) as again:
            assert again.restore("w", 0)[1].recent == [sent(number) for number in range(51)]


def test_a_log_that_is_damaged_is_said_to_be(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        stream, _ = journal.restore("w", None)
        journal.append(stream, [sent(0)], None)
        journal.commit()
        journal.compact(stream, 0, [(0, b"no batch")])
    source = Source("w", "tcp://127.0.0.1:9")
    with pytest.raises(TransportError, match=r"the log cannot be read: .*; move it away"):
        Relay([source], "inproc://a", replay_listen="inproc://b", log=tmp_path)
    (tmp_path / "relay.db").write_bytes(b"no database" * 1_000)
    with pytest.raises(TransportError, match="not a database"):
        Journal(tmp_path)


def test_one_relay_at_a_time(tmp_path: Path) -> None:
    with Journal(tmp_path), pytest.raises(ConfigError, match="another relay uses it"):
        Journal(tmp_path)
    with pytest.raises(TransportError, match="cannot be written"):
        Journal(tmp_path / "relay.db" / "below")


def test_after_the_machine_was_down_the_last_number_is_not_sure(tmp_path: Path) -> None:
    Journal(tmp_path).close()
    with sqlite3.connect(tmp_path / "relay.db") as database:
        database.execute("UPDATE facts SET value = 'another' WHERE name = 'boot'")
    database.close()
    with Journal(tmp_path) as journal:
        assert not journal.restore("w", 0)[1].is_sure
    with Journal(tmp_path) as journal:
        assert journal.restore("w", 0)[1].is_sure


def test_a_log_of_another_version_is_left_alone(tmp_path: Path) -> None:
    Journal(tmp_path).close()
    with sqlite3.connect(tmp_path / "relay.db") as database:
        database.execute("UPDATE facts SET value = '2' WHERE name = 'version'")
    database.close()
    with pytest.raises(ConfigError, match="expected version 1, got 2"):
        Journal(tmp_path)


def test_what_prompts_held_is_for_its_owner_only(tmp_path: Path) -> None:
    with Journal(tmp_path):
        assert (tmp_path / "relay.db").stat().st_mode & 0o777 == 0o600
