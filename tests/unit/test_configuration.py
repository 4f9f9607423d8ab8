"""What the service may be told, and what it refuses."""

import inspect
import re
import socket
import tomllib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, strategies
from hypothesis import settings as examples

from kvevents.cli.serve import serve
from kvevents.errors import ConfigError
from kvevents.server import Secret, Settings, WorkerSettings
from kvevents.server.configuration import ListenSettings, SecuritySettings
from kvevents.server.configuration.check import find_problems, make_plan
from kvevents.server.configuration.events import EventsSettings, JetStreamEvents
from kvevents.server.configuration.fleet import FleetSettings
from kvevents.server.configuration.load import InvalidSettingsError, Override, load_settings
from kvevents.server.configuration.reader import Reader, is_table, keys_of, table_of_list, table_of_mapping
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
        (SecuritySettings, "allowed_hosts", ("https://router.example.com",)),
        (SecuritySettings, "allowed_hosts", ("*.example.com",)),
        (SecuritySettings, "worker_hosts", ("10.0.0.7:30000",)),
        (SecuritySettings, "worker_hosts", ("",)),
    ],
)
def test_settings_that_cannot_work_are_refused(section: type, name: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"{name}: expected"):
        section(**{name: value})


def test_hosts_of_workers_are_those_configured_and_those_allowed() -> None:
    workers = (WorkerSettings(url="http://a:1"), WorkerSettings(url="http://b:2"))
    settings = Settings(workers=workers, security=SecuritySettings(worker_hosts=("C", "::1", "10.0.0.7")))
    assert settings.worker_hosts == {"a", "b", "c", "::1", "10.0.0.7"}


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


def test_the_clients_token_is_not_the_admins() -> None:
    with pytest.raises(ConfigError, match="admin_token: expected another one than the client's") as caught:
        SecuritySettings(client_token=Secret("hunter2"), admin_token=Secret("hunter2"))
    assert "hunter2" not in str(caught.value)


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


def write(folder: Path, text: str) -> Path:
    path = folder / "serve.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[listen]\nport = 'x'", "[listen] port: expected a whole number, got 'x'"),
        ("[listen]\nport = 70000", "[listen] port: expected 0 to 65535, got 70000"),
        ("[listen]\nhots = 1", "[listen] hots: there is no such key; did you mean host? Known are host, port, drain_s"),
        ("[lisen]", "lisen: there is no such section; did you mean listen?"),
        ("listen = 3", "[listen]: expected a table, got 3"),
        ("[routing]\npolicy = 'fastest'", "[routing] policy: expected one of kv, "),
        ("[fleet]\nread_load = 'yes'", "[fleet] read_load: expected true or false, got 'yes'"),
        ("[fleet]\nprobe_interval_s = 0", "[fleet] probe_interval_s: expected seconds above 0, got 0"),
        ("[[worker]]", "[[worker]] 1 url: expected a string, got nothing"),
        ("[worker]\nurl = 3", "[[worker]] 1 url: expected a string, got 3"),
        ("[[worker]]\nurl = 'http://u:hunter2@h'", "[[worker]] 1 url: expected http://host:port, got one with a user"),
        ("[[worker]]\nurl = 'h://u:hunter2@h'\nid = 3", "[[worker]] 1 id: expected a string, got 3"),
        (
            "[[worker]]\nurl = 'http://a'\nresidency = 'sett'",
            "[[worker]] 1 (http://a) residency: expected one of 'counted', 'set', got 'sett'",
        ),
        ("[[worker]]\nurl = 'http://a'\nevents = 'tcp://a'", "[[worker]] 1 (http://a) events: "),
        ("[[worker]]\nurl = 'http://a'\nevents = 'zmq'", "events: expected 'discover', 'none', http://host:port, tcp:"),
        ("[[worker]]\nurl = 'http://a'\nreplay = 'tcp://a:1'", "replay: expected events = 'tcp://host:port' or"),
        ("[[worker]]\nurl = 'http://a'\nranks = 0", "ranks: expected 1 to 1024, got 0"),
        ("[[worker]]\nurl = 'http://a'\ntokenizer = '/t'", "tokenizer: expected models beside it"),
        (
            "[[worker]]\nurl = 'http://a'\nmodels = ['m']\ntokenizer = '/nowhere'",
            "[[worker]] 1 (a:80) tokenizer: prompts.tokenizer.path: expected a directory with a tokenizer.json",
        ),
        ("[[worker]]\nurl = 'http://a'\napi_key_env = 'UNSET'", "(a:80) api_key_env: expected UNSET to be set"),
        ("[[worker]]\nurl = 'http://a'\napi_key_env = 'hunter2 it is'", "api_key_env: expected the name of an"),
        (
            "[[worker]]\nurl = 'http://a'\napi_key_file = '/nowhere'",
            "(a:80) api_key_file: cannot read /nowhere: No such",
        ),
        ("[[worker]]\nurl = 'http://a'\napi_key = 'hunter2'", "api_key: expected no secret here: give it by api_key_"),
        ("[[worker]]\nurl = 'http://a'\n[[worker]]\nurl = 'http://a/'", "id: expected each one once, got 'a:80' more"),
        (
            "[[worker]]\nurl = 'http://localhost:8080'",
            "worker localhost:8080: expected an engine, got the router's own",
        ),
        ("[security]\nclient_token = 'hunter2'", "[security] client_token: expected no secret here"),
        ("[security]\nadmin_token_file = '/nowhere'", "[security] admin_token_file: cannot read /nowhere"),
        ("[security]\ntrusted_proxies = ['me']", "[security] trusted_proxies: expected an address or a network: 'me'"),
        ("[events]\npublisher_key = 'x'", "[events] publisher_key: expected keys beside it"),
        ("[events.delivery]\nwindow = 0", "[events.delivery] window: expected a number above 0, got 0"),
        ("[events.jetstream]\nservers = 'nats://a'", "[events.jetstream] servers: expected a list, each a string"),
        (
            "[events.jetstream]\n[[worker]]\nurl = 'http://a'\nevents = 'http://r'",
            "expected 'discover' or 'none' beside",
        ),
        ("[[prompts.tokenizer]]\nmodels = 'm'", "[[prompts.tokenizer]] 1 path: expected a string, got nothing"),
        ("[listen", "expected TOML: Expected ']' at the end of a table declaration (at end of document)"),
        (
            "[telemetry]\nlog_level = 'loud'",
            "[telemetry] log_level: expected one of 'debug', 'info', 'warning', 'error'",
        ),
    ],
)
def test_what_is_wrong_is_said_with_file_section_key_and_choices(tmp_path: Path, text: str, says: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(InvalidSettingsError) as caught:
        load_settings(path, environment={})
    assert any(says in problem and problem.startswith((str(path), "[")) for problem in caught.value.problems), (
        caught.value.problems
    )
    assert "hunter2" not in str(caught.value)


def test_everything_that_is_wrong_is_said_at_once(tmp_path: Path) -> None:
    path = write(tmp_path, "[listen]\nport = 'x'\nhots = 1\n[rooting]\n[[worker]]\nurl = 3\n[fleet]\nblock_size = 0")
    with pytest.raises(InvalidSettingsError) as caught:
        load_settings(path, overrides=[Override("--policy", "routing.policy", "fastest")], environment={})
    assert len(caught.value.problems) == 6
    assert any(problem.startswith("--policy: expected one of kv") for problem in caught.value.problems)


def test_a_file_that_is_no_file_or_no_text_is_refused(tmp_path: Path) -> None:
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe")
    for path, says in ((tmp_path / "missing.toml", "cannot be read: No such file"), (binary, "expected text in UTF-8")):
        with pytest.raises(InvalidSettingsError, match=says):
            load_settings(path)


def test_flags_go_before_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "[listen]\nport = 1\nhost = '127.0.0.2'\n[[worker]]\nurl = 'http://a'\nmax_in_flight = 3")
    overrides = [Override("--port", "listen.port", 2), Override("--worker", "worker", [{"url": "http://b"}])]
    settings = load_settings(path, overrides=overrides, environment={})
    assert (settings.listen.host, settings.listen.port) == ("127.0.0.2", 2)
    assert [worker.url for worker in settings.workers] == ["http://b"]


def test_secrets_come_from_the_environment_before_files(tmp_path: Path) -> None:
    for name in ("client", "own"):
        (tmp_path / name).write_text(f"{name}-from-file\n")
    path = write(
        tmp_path,
        f"""
        [security]
        client_token_file = "{tmp_path}/client"
        [[worker]]
        url = "http://a"
        api_key_file = "{tmp_path}/own"
        [[worker]]
        url = "http://b"
        api_key_env = "B_KEY"
        [[worker]]
        url = "http://c"
        """,
    )
    environment = {"KVEVENTS_ADMIN_TOKEN": "admin", "B_KEY": "b", "KVEVENTS_WORKER_API_KEY": "all"}
    settings = load_settings(path, environment=environment)
    keys = [worker.api_key.reveal() for worker in settings.workers if worker.api_key is not None]
    assert keys == ["own-from-file", "b", "all"]
    security = settings.security
    assert security.client_token is not None
    assert security.client_token.matches(b"client-from-file")
    assert "from-file" not in repr(settings)
    other = load_settings(path, environment={**environment, "KVEVENTS_CLIENT_TOKEN": "client"})
    assert other.security.client_token is not None
    assert other.security.client_token.matches(b"client")


def test_a_worker_brings_its_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    text = f"[[worker]]\nurl = 'http://a'\nmodels = ['m', 'n']\ntokenizer = '{tmp_path}'"
    settings = load_settings(write(tmp_path, text), environment={})
    tokenizers = [(one.models, one.path) for one in settings.prompts.tokenizer]
    assert tokenizers[:2] == [("m", str(tmp_path)), ("n", str(tmp_path))]
    assert len(tokenizers) == 3


def test_a_plan_tells_no_secrets(tmp_path: Path) -> None:
    text = "[[worker]]\nurl = 'http://a'\n[proxy]\nmax_waiting = 7"
    environment = {f"KVEVENTS_{name}": f"hunter2-{name}" for name in ("CLIENT_TOKEN", "ADMIN_TOKEN", "WORKER_API_KEY")}
    settings = load_settings(write(tmp_path, text), environment=environment)
    plan = make_plan(settings)
    assert (plan.workers[0].id, plan.workers[0].has_api_key) == ("a:80", True)
    assert plan.tokens == {"client": True, "admin": True}
    assert plan.changed == {"proxy.max_waiting": 7}
    assert "hunter2" not in msgspec.json.encode(plan).decode() + repr(plan) + repr(settings)


def test_a_plan_notes_what_would_be_in_the_way_now() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        in_the_way = make_plan(Settings(listen=ListenSettings(port=port)))
        assert in_the_way.notes[0] == f"port {port} cannot be listened on now: Address already in use"
        assert find_problems(Settings(listen=ListenSettings(port=port)), {}) == []


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (Settings(listen=ListenSettings(host="192.0.2.1")), "[listen] host: expected an address of this machine"),
        (Settings(listen=ListenSettings(host="0.0.0.0")), "set KVEVENTS_CLIENT_TOKEN and KVEVENTS_ADMIN_TOKEN"),
        (Settings(events=EventsSettings(keys=Path("/nowhere"))), "[events] keys: cannot read /nowhere"),
        (
            Settings(workers=(WorkerSettings(url="http://a", keys=Path("/nowhere")),)),
            "[[worker]] 1 (a:80) keys: cannot read /nowhere",
        ),
        (
            Settings(events=EventsSettings(jetstream=JetStreamEvents(creds=Path("/nowhere")))),
            "[events.jetstream] NATS access: cannot read /nowhere",
        ),
        (
            Settings(events=EventsSettings(jetstream=JetStreamEvents(servers=("nats://u:hunter2@b",)))),
            "[events.jetstream] servers: b: credentials do not belong into an address",
        ),
    ],
)
def test_a_check_finds_what_reading_does_not_show(settings: Settings, says: str) -> None:
    problems = find_problems(settings, {})
    assert any(problem.startswith(says) or says in problem for problem in problems), problems
    assert "hunter2" not in str(problems)
    assert find_problems(Settings(), {}) == []


def test_a_body_may_say_null_where_a_file_says_nothing() -> None:
    reader = Reader(source="body", origins={})
    assert reader.read(WorkerSettings, {"url": "http://a", "id": None, "ranks": None}) == WorkerSettings(url="http://a")
    assert reader.read(WorkerSettings, {"url": None}) is None
    assert reader.problems == ["body: url: expected a string, got None"]


def test_the_page_about_the_router_names_only_settings_that_there_are() -> None:
    page = (Path(__file__).parents[2] / "docs" / "serve.md").read_text()
    known = {key.name: {inner.name for inner in keys_of(key.kind)} for key in keys_of(Settings) if is_table(key.kind)}
    named = re.findall(r"`\[(\w+)\] (\w+)", page)
    assert named
    assert all(key in known[section] for section, key in named)
    for block in re.findall(r"```toml\n(.*?)```", page, flags=re.DOTALL):
        assert Reader(source="page", origins={}).read(Settings, tomllib.loads(block)) is not None
    for name in re.findall(r"--([a-z-]+)", " ".join(re.findall(r"^kvevents serve .*$", page, flags=re.MULTILINE))):
        assert name.replace("-", "_") in inspect.signature(serve).parameters


JSON = strategies.recursive(
    strategies.none() | strategies.booleans() | strategies.integers() | strategies.floats() | strategies.text(),
    lambda inner: strategies.lists(inner, max_size=3) | strategies.dictionaries(strategies.text(), inner, max_size=3),
    max_leaves=5,
)


@examples(max_examples=50)
@given(strategies.dictionaries(strategies.sampled_from([*WorkerSettings.__struct_fields__, "x"]), JSON, max_size=6))
def test_whatever_a_body_holds_is_a_worker_or_says_what_is_wrong(body: dict[str, object]) -> None:
    reader = Reader(source="body", origins={})
    described = reader.read(WorkerSettings, {"url": "http://a", **body})
    assert (described is None) == bool(reader.problems)


@examples(max_examples=50)
@given(strategies.data())
def test_whatever_a_file_holds_is_settings_or_says_what_is_wrong(data: strategies.DataObject) -> None:
    table: dict[str, object] = {}
    for key in data.draw(strategies.lists(strategies.sampled_from(keys_of(Settings)), max_size=3)):
        kind = table_of_list(key.kind) or key.kind
        names = [inner.name for inner in keys_of(kind)]
        table[key.name] = data.draw(JSON | strategies.dictionaries(strategies.sampled_from(names), JSON, max_size=4))
    reader = Reader(source="file", origins={})
    assert (reader.read(Settings, table) is None) == bool(reader.problems)
