"""Addresses: ranks, who binds, and what wildcards mean."""

import pytest

from kvevents.errors import ConfigError
from kvevents.transport import Endpoint, Source, binds, rank_endpoint, rank_sources


@pytest.mark.parametrize(
    ("endpoint", "rank", "expected"),
    [
        ("tcp://127.0.0.1:5557", 0, "tcp://127.0.0.1:5557"),
        ("tcp://127.0.0.1:5557", 3, "tcp://127.0.0.1:5560"),
        ("tcp://*:5557", 1, "tcp://*:5558"),
        ("tcp://[::]:5557", 1, "tcp://[::]:5558"),
        ("tcp://[fe80::1]:5557", 2, "tcp://[fe80::1]:5559"),
        ("tcp://*:*", 1, "tcp://*:*"),
        ("tcp://127.0.0.1:0", 1, "tcp://127.0.0.1:0"),
        ("ipc:///run/kv.sock", 0, "ipc:///run/kv.sock"),
        ("ipc:///run/kv.sock", 1, "ipc:///run/kv.sock_dp1"),
        ("ipc://*", 1, "ipc://*"),
        ("inproc://kv", 2, "inproc://kv_dp2"),
    ],
)
def test_rank_shifts_ports_and_suffixes_names(endpoint: str, rank: int, expected: str) -> None:
    assert rank_endpoint(endpoint, rank) == expected


@pytest.mark.parametrize(("endpoint", "rank"), [("tcp://*:65535", 1), ("tcp://*:5557", -1)])
def test_rank_without_a_port_is_refused(endpoint: str, rank: int) -> None:
    with pytest.raises(ConfigError, match="rank"):
        rank_endpoint(endpoint, rank)


@pytest.mark.parametrize(
    "endpoint",
    [
        "",
        "5557",
        "127.0.0.1:5557",
        "http://127.0.0.1:5557",
        "tcp://127.0.0.1",
        "tcp://host:99999",
        "tcp://host:-1",
        "tcp://host:port",
        "tcp://host:\u0665",
        "tcp://",
        "ipc://",
    ],
)
def test_what_is_no_endpoint_is_named(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="endpoint") as caught:
        Endpoint.parse(endpoint)
    assert repr(endpoint) in str(caught.value)


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        ("tcp://*:5557", True),
        ("tcp://[::]:5557", True),
        ("tcp://::1:5557", True),
        ("tcp://0.0.0.0:5557", True),
        ("tcp://127.0.0.1:*", True),
        ("tcp://127.0.0.1:0", True),
        ("ipc:///run/kv.sock", True),
        ("inproc://kv", True),
        ("tcp://127.0.0.1:5557", False),
        ("tcp://localhost:5557", False),
        ("tcp://router.example:5557", False),
    ],
)
def test_publisher_binds_wildcards_and_connects_to_hosts(endpoint: str, expected: bool) -> None:
    assert binds(endpoint) is expected


@pytest.mark.parametrize(
    ("endpoint", "to_bind", "to_connect"),
    [
        ("tcp://*:5557", "tcp://*:5557", "tcp://127.0.0.1:5557"),
        ("tcp://0.0.0.0:5557", "tcp://0.0.0.0:5557", "tcp://127.0.0.1:5557"),
        ("tcp://[::]:5557", "tcp://[::]:5557", "tcp://[::1]:5557"),
        ("tcp://localhost:5557", "tcp://127.0.0.1:5557", "tcp://127.0.0.1:5557"),
        ("tcp://engine-3:5557", "tcp://engine-3:5557", "tcp://engine-3:5557"),
        ("tcp://::1:5557", "tcp://[::1]:5557", "tcp://[::1]:5557"),
        ("ipc:///run/kv.sock", "ipc:///run/kv.sock", "ipc:///run/kv.sock"),
    ],
)
def test_either_side_gets_an_address_that_works(endpoint: str, to_bind: str, to_connect: str) -> None:
    parsed = Endpoint.parse(endpoint)
    assert parsed.to_bind() == to_bind
    assert parsed.to_connect() == to_connect


def test_wildcard_is_reached_at_the_given_host() -> None:
    assert Endpoint.parse("tcp://*:5557").to_connect("10.0.0.7") == "tcp://10.0.0.7:5557"
    assert Endpoint.parse("tcp://10.0.0.8:5557").to_connect("10.0.0.7") == "tcp://10.0.0.8:5557"


def test_sources_of_ranks_have_their_own_sockets() -> None:
    sources = rank_sources("w", "tcp://10.0.0.7:5557", 2, replay_endpoint="tcp://10.0.0.7:6557", block_size=16)
    assert [(s.dp_rank, s.endpoint, s.replay_endpoint, s.block_size) for s in sources] == [
        (0, "tcp://10.0.0.7:5557", "tcp://10.0.0.7:6557", 16),
        (1, "tcp://10.0.0.7:5558", "tcp://10.0.0.7:6558", 16),
    ]


@pytest.mark.parametrize(
    ("settings", "names"),
    [
        ({"worker_id": ""}, "worker_id"),
        ({"endpoint": "tcp://127.0.0.1:*"}, "port"),
        ({"endpoint": "nonsense"}, "endpoint"),
        ({"replay_endpoint": "tcp://127.0.0.1:0"}, "port"),
        ({"replay_endpoint": "tcp://127.0.0.1:5557"}, "two sockets"),
        ({"dp_rank": -1}, "dp_rank"),
        ({"topic": b"kv"}, "topic"),
        ({"block_size": 0}, "block_size"),
        ({"residency": "maybe"}, "residency"),
        ({"keys": "x"}, "keys"),
    ],
)
def test_source_refuses_settings_that_cannot_work(settings: dict[str, object], names: str) -> None:
    arguments: dict[str, object] = {"worker_id": "w", "endpoint": "tcp://127.0.0.1:5557"} | settings
    with pytest.raises(ConfigError, match=names):
        Source(**arguments)  # type: ignore[arg-type]  # wrong on purpose


def test_source_that_binds_may_leave_the_port_open() -> None:
    assert Source("w", "tcp://127.0.0.1:*", bind=True).bind is True
