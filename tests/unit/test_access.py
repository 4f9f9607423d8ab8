"""Who is let through, and what for."""

from typing import Any

import pytest

from kvevents.server import Secret, Settings
from kvevents.server.access.access import COOKIE, Access, Asked
from kvevents.server.access.guesses import Guesses
from kvevents.server.access.peers import Peers
from kvevents.server.access.sessions import Sessions
from kvevents.server.configuration import ListenSettings, SecuritySettings
from kvevents.server.errors import HttpError

HOST = b"127.0.0.1:8080"


class Clock:
    def __init__(self) -> None:
        self.time = 1_000.0

    def __call__(self) -> float:
        return self.time


def make_access(clock: Clock | None = None, *, listen: str = "127.0.0.1", **security: Any) -> Access:
    settings = Settings(listen=ListenSettings(host=listen), security=SecuritySettings(**security))
    return Access(settings, now=clock or Clock())


def guarded(clock: Clock | None = None, **security: Any) -> Access:
    return make_access(clock, client_token=Secret("client"), admin_token=Secret("admin"), **security)


def ask(method: str = "GET", path: str = "/stats", peer: str = "10.0.0.9", **headers: bytes) -> Asked:
    named = {name.replace("_", "-").encode(): value for name, value in headers.items()}
    return Asked(method, path, {b"host": HOST, **named}, peer)


def refusal(access: Access, asked: Asked) -> tuple[int, str]:
    with pytest.raises(HttpError) as caught:
        access.admit_admin(asked)
    return caught.value.status, caught.value.code


def cookie(session: str | None) -> bytes:
    assert session is not None
    return f"other=1; {COOKIE}={session}".encode()


def test_each_scope_takes_its_own_token() -> None:
    access = guarded()
    access.admit_admin(ask(authorization=b"Bearer admin"))
    access.admit_client("POST", b"bearer  client", [], "10.0.0.9")
    assert refusal(access, ask(authorization=b"Bearer client"))[0] == 401
    for wrong in (b"", b"Bearer ", b"Basic client", b"client", b"Bearer admin", b"Bearer clien\xff"):
        with pytest.raises(HttpError, match="client token"):
            access.admit_client("POST", wrong, [], "10.0.0.9")
    assert (access.counters.wrong_tokens, access.counters.missing_tokens) == (3, 4)


def test_a_session_stands_for_the_token_until_it_ends() -> None:
    clock = Clock()
    access = guarded(clock, session_s=60.0)
    session = access.login("admin", "10.0.0.9")
    access.admit_admin(ask(cookie=cookie(session)))
    assert session is not None
    assert "admin" not in session
    clock.time += 59
    access.admit_admin(ask(cookie=cookie(session)))
    clock.time += 1
    assert refusal(access, ask(cookie=cookie(session))) == (401, "unauthorized")
    assert access.counters.stale_sessions == 1


def test_a_logout_ends_a_session_and_no_other() -> None:
    access = guarded()
    one, other = access.login("admin", "a"), access.login("admin", "a")
    access.logout(ask(cookie=cookie(one)).headers)
    access.logout(ask(cookie=cookie(one)).headers)
    assert refusal(access, ask(cookie=cookie(one)))[0] == 401
    access.admit_admin(ask(cookie=cookie(other)))
    assert (access.counters.logins, access.counters.logouts) == (2, 1)


@pytest.mark.parametrize("forged", ["", "x", "é", "AAAA" * 14, "////", "A" * 75])
def test_forged_sessions_hold_nothing(forged: str) -> None:
    sessions = Sessions(lifetime_s=60, now=Clock())
    assert not sessions.holds(forged)
    assert not sessions.end(forged)


def test_a_changed_session_and_one_of_another_router_hold_nothing() -> None:
    clock = Clock()
    sessions = Sessions(lifetime_s=60, now=clock)
    session = sessions.begin()
    later = ("B" if session[0] == "A" else "A") + session[1:]
    assert sessions.holds(session)
    assert not sessions.holds(later)
    assert not Sessions(lifetime_s=60, now=clock).holds(session)


def test_what_changes_something_with_a_cookie_comes_from_the_own_page() -> None:
    access = guarded()
    session = cookie(access.login("admin", "a"))
    access.admit_admin(ask("POST", cookie=session, origin=b"http://127.0.0.1:8080"))
    access.admit_admin(ask("POST", cookie=session, origin=b"https://127.0.0.1:8080"))  # a proxy ends TLS
    access.admit_admin(ask("DELETE", cookie=session, sec_fetch_site=b"same-origin"))
    for origin in (b"https://evil.example", b"null", b"http://127.0.0.1:9000", b"http://127.0.0.1:8080.evil.example"):
        assert refusal(access, ask("POST", cookie=session, origin=origin)) == (403, "origin_not_allowed")
    assert refusal(access, ask("POST", cookie=session, sec_fetch_site=b"cross-site"))[0] == 403
    assert refusal(access, ask("POST", cookie=session))[0] == 403  # a browser would have said
    access.admit_admin(ask("POST", authorization=b"Bearer admin", origin=b"https://evil.example"))
    assert access.counters.foreign_origins == 6


@pytest.mark.parametrize(
    ("host", "is_ours"),
    [
        (b"127.0.0.1:8080", True),
        (b"localhost:8080", True),
        (b"LOCALHOST", True),
        (b"[::1]:8080", True),
        (b"192.168.1.7", True),  # an address cannot be pointed elsewhere
        (b"router.internal", True),
        (b"grafana.localhost:80", True),
        (b"evil.example:8080", False),
        (b"127.0.0.1.evil.example", False),
        (b"router.internal.evil.example", False),
    ],
)
def test_only_known_names_are_answered_without_a_token(host: bytes, is_ours: bool) -> None:
    access = make_access(allowed_hosts=("Router.internal",))
    asked = ask()._replace(headers={b"host": host})
    if is_ours:
        access.admit_admin(asked)
        access.admit_client("POST", b"", [(b"Host", host)], "a")
    else:
        assert refusal(access, asked) == (403, "host_not_allowed")
        with pytest.raises(HttpError, match="allowed_hosts"):
            access.admit_client("POST", b"", [(b"Host", host)], "a")
        guarded().admit_admin(asked._replace(headers={b"host": host, b"authorization": b"Bearer admin"}))


def test_a_page_of_somebody_else_cannot_use_an_open_router() -> None:
    access = make_access()
    headers = [(b"Host", HOST), (b"Origin", b"https://evil.example")]
    with pytest.raises(HttpError, match="another page"):
        access.admit_client("POST", b"", headers, "a")
    assert refusal(access, ask("POST", origin=b"https://evil.example"))[0] == 403
    access.admit_admin(ask("POST"))  # curl says nothing


def test_wrong_tokens_are_limited_by_address() -> None:
    clock = Clock()
    access = guarded(clock, wrong_tokens_per_minute=3)
    wrong = ask(authorization=b"Bearer guess", peer="a")
    assert [refusal(access, wrong)[0] for _ in range(5)] == [401, 401, 401, 429, 429]
    assert refusal(access, ask(authorization=b"Bearer admin", peer="a")) == (429, "too_many_wrong_tokens")
    access.admit_admin(ask(authorization=b"Bearer admin", peer="b"))
    clock.time += 21
    access.admit_admin(ask(authorization=b"Bearer admin", peer="a"))
    assert (access.counters.wrong_tokens, access.counters.limited) == (3, 3)


def test_who_shares_an_address_with_a_guesser_is_not_locked_out_but_its_login_is() -> None:
    access = guarded(wrong_tokens_per_minute=2)
    right, wrong = ask(authorization=b"Bearer admin", peer="a"), ask(authorization=b"Bearer guess", peer="a")
    access.admit_admin(right)
    assert {refusal(access, wrong)[0] for _ in range(5)} == {401}
    access.admit_admin(right)
    with pytest.raises(HttpError, match="too many"):
        access.login("admin", "a")


def test_no_more_addresses_are_remembered_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvevents.server.access.guesses.MOST_PEERS", 3)
    guesses = Guesses(per_minute=1, now=Clock())
    for number in range(10):
        guesses.wrong(f"peer {number}")
        guesses.right(f"friend {number}")
    assert [number for number in range(10) if guesses.is_over(f"peer {number}")] == [7, 8, 9]
    assert len(guesses._known) == 3


def test_probes_learn_more_with_a_token_and_cannot_be_used_to_guess() -> None:
    access = guarded(wrong_tokens_per_minute=2)
    assert not access.is_admin(ask(path="/ready"))
    assert access.is_admin(ask(path="/ready", authorization=b"Bearer admin"))
    for _ in range(3):
        assert not access.is_admin(ask(path="/ready", authorization=b"Bearer guess", peer="a"))
    assert access.counters.limited == 1
    assert make_access().is_admin(ask(path="/ready"))


def test_without_a_token_there_is_nothing_to_log_in_to() -> None:
    assert make_access().login("anything", "a") is None


@pytest.mark.parametrize(
    ("peer", "told", "client"),
    [
        ("10.0.0.1", b"203.0.113.5", "203.0.113.5"),
        ("10.0.0.1", b"6.6.6.6, 203.0.113.5", "203.0.113.5"),  # the first one is whatever the client wrote
        ("10.0.0.1", b"203.0.113.5, 10.0.0.2", "203.0.113.5"),
        ("10.0.0.1", b"nonsense", "10.0.0.1"),
        ("10.0.0.1", b"", "10.0.0.1"),
        ("203.0.113.9", b"1.2.3.4", "203.0.113.9"),
    ],
)
def test_only_trusted_proxies_say_whom_they_speak_for(peer: str, told: bytes, client: str) -> None:
    headers = {b"x-forwarded-for": told, b"x-forwarded-proto": b"https"}
    peers = Peers(["10.0.0.0/8"])
    assert peers.address(peer, headers) == client
    assert peers.is_secure(peer, "http", headers) == peer.startswith("10.")
    assert Peers(()).address(peer, headers) == peer
    assert not Peers(()).is_secure(peer, "http", headers)
    assert Peers(()).is_secure(peer, "https", {})
