"""What the service may be told, and what it refuses."""

from pathlib import Path

import pytest

from kvevents.errors import ConfigError
from kvevents.server import Secret, Settings
from kvevents.server.settings import check_binding, token_from, worker_address


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://127.0.0.1:30000", ("127.0.0.1", 30000)),
        ("http://host/", ("host", 80)),
        ("https://host", ("host", 443)),
        ("http://[::1]:8000", ("::1", 8000)),
    ],
)
def test_addresses_of_workers(url: str, address: tuple[str, int]) -> None:
    assert worker_address(url) == address


@pytest.mark.parametrize(
    "url",
    [
        "",
        "host:80",
        "ftp://host",
        "http://",
        "http://h:x",
        "http://h:70000",
        "http://h/v1",
        "http://h?a=1",
        "http://u@h",
    ],
)
def test_what_is_no_base_url_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="worker URL: expected http://host:port"):
        worker_address(url)
    with pytest.raises(ConfigError):
        Settings(workers=(url,))


@pytest.mark.parametrize(
    "wrong", [{"block_size": 0}, {"max_body_bytes": 0}, {"health_interval_s": -1.0}, {"idle_timeout_s": float("nan")}]
)
def test_settings_that_cannot_work_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong)).replace("block_size", "block size")):
        Settings(**wrong)  # type: ignore[arg-type]


def test_hosts_of_workers_are_those_configured_and_those_allowed() -> None:
    settings = Settings(workers=("http://a:1", "http://b:2"), allowed_hosts=("c",))
    assert settings.worker_hosts == {"a", "b", "c"}


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "localhost", "::1", "[::1]"])
def test_loopback_needs_no_tokens(host: str) -> None:
    check_binding(host, Settings())


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.1", "example.org", ""])
def test_anything_wider_needs_both(host: str) -> None:
    with pytest.raises(ConfigError, match="set KVEVENTS_CLIENT_TOKEN and KVEVENTS_ADMIN_TOKEN"):
        check_binding(host, Settings())
    with pytest.raises(ConfigError, match="set KVEVENTS_ADMIN_TOKEN "):
        check_binding(host, Settings(client_token=Secret("c")))
    check_binding(host, Settings(client_token=Secret("c"), admin_token=Secret("a")))


def test_tokens_come_by_environment_or_file(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("from-a-file\n")
    direct, from_file = token_from({"T": "direct"}, "T"), token_from({"T_FILE": str(path)}, "T")
    assert direct is not None
    assert direct.matches(b"direct")
    assert from_file is not None
    assert from_file.matches(b"from-a-file")
    assert token_from({}, "T") is None


def test_tokens_that_cannot_be_are_refused(tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.write_text("\n")
    for environment, message in (
        ({"T": ""}, "got an empty one"),
        ({"T": "a", "T_FILE": "b"}, "got both"),
        ({"T_FILE": str(tmp_path / "missing")}, "cannot read"),
        ({"T_FILE": str(empty)}, "got an empty one"),
    ):
        with pytest.raises(ConfigError, match=message):
            token_from(environment, "T")


def test_a_secret_is_never_shown() -> None:
    secret = Secret("hunter2")
    assert "hunter2" not in f"{secret} {secret!r} {Settings(client_token=secret)}"
    assert not secret.matches(b"hunter")
    assert not secret.matches(b"")
    with pytest.raises(ConfigError):
        Secret("")
