"""What the service may be told, and what it refuses."""

from pathlib import Path

import msgspec
import pytest

from kvevents.errors import ConfigError
from kvevents.server import Secret, Settings, WorkerSettings
from kvevents.server.configuration import ListenSettings, SecuritySettings
from kvevents.server.configuration.fleet import FleetSettings
from kvevents.server.configuration.load import load_settings
from kvevents.server.configuration.reader import is_table, keys_of, table_of_list, table_of_mapping
from kvevents.server.configuration.reference import annotated_defaults, attributes_of
from kvevents.server.configuration.worker import worker_address
from kvevents.server.proxy.settings import ProxySettings


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
    with pytest.raises(ConfigError, match="expected http://host:port"):
        worker_address(url)
    with pytest.raises(ConfigError):
        WorkerSettings(url=url)


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [
        (FleetSettings, "block_size", 0),
        (FleetSettings, "probe_interval_s", -1.0),
        (FleetSettings, "probe_timeout_s", float("inf")),
        (FleetSettings, "probe_jitter", 1.0),
        (FleetSettings, "ready_grace_s", float("nan")),
        (ProxySettings, "max_body_bytes", 0),
        (ProxySettings, "idle_timeout_s", float("nan")),
        (ListenSettings, "port", 65_536),
        (ListenSettings, "drain_s", -1.0),
        (SecuritySettings, "session_s", 0.0),
        (SecuritySettings, "trusted_proxies", ("10.0.0.1/8",)),
    ],
)
def test_settings_that_cannot_work_are_refused(section: type, name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"{name}: expected"):
        section(**{name: value})


def test_hosts_of_workers_are_those_configured_and_those_allowed() -> None:
    workers = (WorkerSettings(url="http://a:1"), WorkerSettings(url="http://b:2"))
    settings = Settings(workers=workers, security=SecuritySettings(worker_hosts=("c",)))
    assert settings.worker_hosts == {"a", "b", "c"}


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1.2.3", "localhost", "::1", "[::1]"])
def test_loopback_needs_no_tokens(host: str) -> None:
    SecuritySettings().check_binding(ListenSettings(host=host))


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.1", "example.org", ""])
def test_anything_wider_needs_both(host: str) -> None:
    with pytest.raises(ConfigError, match="set KVEVENTS_CLIENT_TOKEN and KVEVENTS_ADMIN_TOKEN"):
        SecuritySettings().check_binding(ListenSettings(host=host))
    with pytest.raises(ConfigError, match="set KVEVENTS_ADMIN_TOKEN "):
        SecuritySettings(client_token=Secret("c")).check_binding(ListenSettings(host=host))
    SecuritySettings(client_token=Secret("c"), admin_token=Secret("a")).check_binding(ListenSettings(host=host))


def test_tokens_come_by_environment_or_file(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("from-a-file\n")
    direct, from_file = (
        Secret.from_environment({"T": "direct"}, "T"),
        Secret.from_environment({"T_FILE": str(path)}, "T"),
    )
    assert direct is not None
    assert direct.matches(b"direct")
    assert from_file is not None
    assert from_file.matches(b"from-a-file")
    assert Secret.from_environment({}, "T") is None


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
            Secret.from_environment(environment, "T")


def test_a_secret_is_never_shown() -> None:
    secret = Secret("hunter2")
    assert "hunter2" not in f"{secret} {secret!r} {Settings(security=SecuritySettings(client_token=secret))}"
    assert not secret.matches(b"hunter")
    assert not secret.matches(b"")
    with pytest.raises(ConfigError):
        Secret("")


def test_the_documented_file_is_the_defaults() -> None:
    path = Path(__file__).parents[2] / "docs" / "serve.toml"
    assert path.read_text() == annotated_defaults(), "python -m kvevents serve --defaults > docs/serve.toml"
    settings = load_settings(path, environment={})
    assert settings.workers == (WorkerSettings(url="http://127.0.0.1:30000"),)
    assert msgspec.structs.replace(settings, workers=()) == Settings()


def test_every_key_is_documented() -> None:
    def check(kind: type) -> None:
        said = attributes_of(kind)
        for key in keys_of(kind):
            if not key.field.startswith("_"):
                assert said.get(key.field), f"{kind.__name__}.{key.field}"
                for inner in (key.kind, table_of_list(key.kind), table_of_mapping(key.kind)):
                    if is_table(inner):
                        check(inner)

    check(Settings)
