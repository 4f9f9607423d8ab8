"""Keys as files: made once, secret ones readable by their owner only, and nothing of them in what is said."""

import os
import stat
from pathlib import Path

import pytest
import zmq
from zmq.auth import load_certificate

from kvevents.cli import main
from kvevents.errors import ConfigError
from kvevents.transport import ConsumerKeys, PublisherKeys, Source, State, ZmqPublisher, make_keys
from kvevents.transport.handshake import HANDSHAKE_FAILED, explain_handshake
from kvevents.transport.picture import Picture
from kvevents.transport.standing import Standing
from kvevents.transport.state import Reason, SourceCounters, StateMachine


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_keys_are_certificates_that_zmq_reads_and_only_their_owner_can(tmp_path: Path) -> None:
    mask = os.umask(0)
    try:
        made = make_keys(tmp_path / "keys", ("router", "recorder"))
    finally:
        os.umask(mask)
    assert made.is_new
    assert set(made.clients) == {"router", "recorder"}
    for private in (made.publisher, *made.clients.values()):
        public, secret = load_certificate(private)
        assert secret is not None
        assert zmq.curve_public(secret) == public
        assert mode(private) == 0o600
        assert load_certificate(private.with_suffix(".key")) == (public, None)
    allowed = PublisherKeys(made.publisher).allowed()
    assert allowed == {load_certificate(path)[0] for path in made.clients.values()}
    assert len(allowed) == 2
    for path in made.clients.values():
        assert ConsumerKeys(path).publisher_file.read_text() == made.publisher.with_suffix(".key").read_text()


def test_nothing_is_overwritten_and_nothing_made_where_something_would_be(tmp_path: Path) -> None:
    first = make_keys(tmp_path)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match="not overwritten"):
        make_keys(tmp_path, ("new", "consumer"))
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    again = make_keys(tmp_path, ("new",))
    assert not again.is_new
    assert again.publisher == first.publisher
    assert {path: path.read_bytes() for path in before} == before
    assert len(PublisherKeys(again.publisher).allowed()) == 2


@pytest.mark.parametrize("name", ["", "a/b", "..", "publisher", "a b", "-x", "x" * 65])
def test_names_that_cannot_be_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="expected a name"):
        make_keys(tmp_path / "k", (name,))
    assert not (tmp_path / "k").exists()
    with pytest.raises(ConfigError, match="each name once"):
        make_keys(tmp_path / "k", ("a", "a"))


def test_files_that_cannot_be_used_are_refused_without_a_word_of_what_is_in_them(tmp_path: Path) -> None:
    made = make_keys(tmp_path)
    own = made.clients["consumer"]
    _, secret = load_certificate(own)
    assert secret is not None
    wrong = tmp_path / "wrong.key_secret"
    wrong.touch(0o600)
    for text, says in (
        (secret.decode(), "expected a ZMQ certificate"),
        (f'curve\n    public-key = "{secret.decode()[:-1]}"\n', "expected a ZMQ certificate"),
        ("x" * 20_000, "above 16384 bytes"),
        ("", "expected a ZMQ certificate"),
    ):
        wrong.write_text(text)
        with pytest.raises(ConfigError, match=says) as refused:
            ConsumerKeys(wrong)
        assert secret.decode()[:-1] not in str(refused.value)
    with pytest.raises(ConfigError, match="cannot read"):
        ConsumerKeys(tmp_path / "none.key_secret")
    with pytest.raises(ConfigError, match="public one only"):
        ConsumerKeys(own.with_suffix(".key"))
    with pytest.raises(ConfigError, match="cannot read the folder"):
        PublisherKeys(made.publisher, tmp_path / "nobody")
    clients = PublisherKeys(made.publisher).clients_folder
    clients.chmod(0o703)
    with pytest.raises(ConfigError, match="chmod o-w"):
        PublisherKeys(made.publisher)
    own.chmod(0o604)
    with pytest.raises(ConfigError, match="chmod 600"):
        ConsumerKeys(own)


def test_a_file_in_the_list_that_is_none_bars_nobody_else(tmp_path: Path) -> None:
    made = make_keys(tmp_path)
    keys = PublisherKeys(made.publisher)
    (keys.clients_folder / "broken.key").write_text("nonsense")
    assert len(keys.allowed()) == 1


def test_a_libzmq_that_cannot_encrypt_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make_keys(tmp_path)
    monkeypatch.setattr(zmq, "has", lambda what: what != "curve")
    for call in (
        lambda: make_keys(tmp_path, ("other",)),
        lambda: PublisherKeys(made.publisher),
        lambda: ConsumerKeys(made.clients["consumer"]),
    ):
        with pytest.raises(ConfigError, match="without CURVE"):
            call()


def test_what_never_leaves_the_process_takes_no_keys(tmp_path: Path) -> None:
    made = make_keys(tmp_path)
    with pytest.raises(ConfigError, match="inproc"):
        ZmqPublisher("inproc://keys", keys=PublisherKeys(made.publisher))
    with pytest.raises(ConfigError, match="inproc"):
        Source("w", "tcp://127.0.0.1:5557", replay_endpoint="inproc://r", keys=ConsumerKeys(made.clients["consumer"]))


def test_a_failed_handshake_is_explained_and_no_key_is_in_it(tmp_path: Path) -> None:
    keys = ConsumerKeys(make_keys(tmp_path).clients["consumer"])
    keyed, plain = Source("w", "tcp://h:1", keys=keys), Source("w", "tcp://h:1")
    broken, protocol, refused = (
        zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL,
        zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL,
        zmq.EVENT_HANDSHAKE_FAILED_AUTH,
    )
    assert broken | protocol | refused == HANDSHAKE_FAILED
    mismatch = zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH
    assert "folder clients" in explain_handshake(keyed, refused, 400)
    assert "has no keys" in explain_handshake(keyed, protocol, mismatch)
    assert "another key than" in explain_handshake(keyed, broken, 32)
    assert "wants keys" in explain_handshake(plain, protocol, mismatch)
    assert explain_handshake(plain, broken, 32) == ""


def test_a_source_that_is_lost_says_that_the_keys_changed_and_comes_back_as_others_do() -> None:
    counters = SourceCounters()
    machine = StateMachine(counters, lambda: None, "")
    machine.move(Reason.FIRST_REPLAY, "")
    machine.move(Reason.COMPLETE, "")
    machine.move(Reason.CONNECTION_LOST, "")
    standing = Standing(machine, has_replay=True, topic=b"")
    standing.barred = "other keys"
    standing.show(Picture(None, counters, 1), None)  # type: ignore[arg-type] # nothing is applied
    assert (machine.state, machine.code, machine.detail) == (State.LOST, Reason.KEYS_CHANGED, "other keys")
    machine.move(Reason.RECONNECTED, "")
    assert machine.state is State.RECOVERING


def test_the_command_makes_keys_and_prints_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["keys", str(tmp_path / "k"), "--client", "router", "--json"]) == 0
    told = capsys.readouterr()
    private = tmp_path / "k" / "router" / "router.key_secret"
    assert str(private) in told.out
    for path in (private, tmp_path / "k" / "publisher" / "publisher.key_secret"):
        for key in load_certificate(path):
            assert key is not None
            assert key.decode() not in told.out + told.err
    assert main(["keys", str(tmp_path / "k"), "--client", "router"]) == 2
    assert "not overwritten" in capsys.readouterr().err
    assert main(["tail", "tcp://127.0.0.1:9", "--keys", str(tmp_path / "none")]) == 2
    assert "cannot read" in capsys.readouterr().err
