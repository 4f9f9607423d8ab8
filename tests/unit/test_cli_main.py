"""The command line's frame: usage errors, exit codes, one line per error."""

import sys
from types import ModuleType

import pytest

from kvevents import __version__, cli
from kvevents.errors import CapacityError, ConfigError, KVEventsError, TransportError, WireError


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module of a command `probe` that is in the table; a test sets its `probe`."""
    module = ModuleType("kvevents.cli.probe")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setitem(cli.COMMANDS, "probe", "Only here to be called.")
    return module


def raise_from(command: ModuleType, error: BaseException) -> None:
    def probe() -> None:
        """Fail."""
        raise error

    vars(command)["probe"] = probe


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == cli.DONE
    assert capsys.readouterr().out.strip() == __version__


def test_help_lists_every_command_without_importing_it(capsys: pytest.CaptureFixture[str]) -> None:
    before = set(sys.modules)
    assert cli.main(["--help"]) == cli.DONE
    out = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert all(f"{name} {summary}" in out for name, summary in cli.COMMANDS.items())
    assert not {f"kvevents.cli.{name}" for name in cli.COMMANDS} & (set(sys.modules) - before)


@pytest.mark.parametrize(
    "words", [["nonsense"], ["probe", "--nonsense"], ["probe", "--count", "many"], ["--nonsense"], ["probe", "extra"]]
)
def test_wrong_usage_is_one_clear_line_and_exit_2(
    words: list[str], command: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    def probe(*, count: int = 1) -> None:
        """Count."""

    vars(command)["probe"] = probe
    assert cli.main(words) == cli.USAGE
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert words[-1] in captured.err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("page size: expected more than 0,\ngot -1"), cli.USAGE),
        (TransportError("http://x: connection refused"), cli.OTHER_SIDE_FAILED),
        (WireError("expected a map", 7), cli.OTHER_SIDE_FAILED),
        (CapacityError("too big", requested=2, available=1), cli.OTHER_SIDE_FAILED),
        (KVEventsError("anything else"), cli.OTHER_SIDE_FAILED),
    ],
)
def test_our_errors_are_one_line_without_a_traceback(
    error: KVEventsError, code: int, command: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    raise_from(command, error)
    assert cli.main(["probe"]) == code
    assert capsys.readouterr().err == f"kvevents: {' '.join(str(error).split())}\n"


def test_an_interrupt_ends_quietly(command: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    raise_from(command, KeyboardInterrupt())
    assert cli.main(["probe"]) == cli.INTERRUPTED
    assert capsys.readouterr().err == ""


def test_an_error_that_is_not_ours_is_not_hidden(command: ModuleType) -> None:
    raise_from(command, ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        cli.main(["probe"])


@pytest.mark.parametrize(("returned", "code"), [(None, cli.DONE), (cli.ANSWER_IS_NO, cli.ANSWER_IS_NO)])
def test_a_command_returns_its_exit_code(returned: int | None, code: int, command: ModuleType) -> None:
    def probe() -> int | None:
        """Answer."""
        return returned

    vars(command)["probe"] = probe
    assert cli.main(["probe"]) == code


@pytest.mark.parametrize("name", list(cli.COMMANDS))
def test_every_command_has_help_with_an_example_and_json(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([name, "--help"]) == cli.DONE
    out = capsys.readouterr().out
    assert f"Example: kvevents {name}" in out
    assert "--json" in out


@pytest.mark.parametrize("name", list(cli.COMMANDS))
def test_every_command_refuses_unknown_flags(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([name, "--nonsense"]) == cli.USAGE
    assert "--nonsense" in capsys.readouterr().err


NUMBERS: dict[str, dict[str, tuple[str, ...]]] = {
    "serve": {
        "--port": ("-1", "65536", "8080.5"),
        "--block-size": ("0", "99999999999999999999"),
        "--set=fleet.probe_interval_s": ("0", "nan", "inf"),
        "--set=fleet.probe_timeout_s": ("-1", "nan"),
        "--set=listen.drain_s": ("-1", "many"),
    },
    "demo": {
        "--speed": ("nan", "inf"),
        "--workers": ("2.5", "nan"),
        "--limit": ("99999999999999999999",),
        "--prefill-tokens-per-second": ("inf",),
    },
    "engine": {
        "--port": ("-1", "65536"),
        "--speed": ("inf",),
        "--dp-size": ("0", "1.5", "99999999999999999999"),
        "--max-total-tokens": ("99999999999999999999",),
        "--page-size": ("99999999999999999999",),
    },
    "tail http://127.0.0.1:1": {"--limit": ("0", "99999999999999999999")},
}


@pytest.mark.parametrize(
    ("command", "flag", "value"),
    [(command, flag, value) for command, flags in NUMBERS.items() for flag in flags for value in flags[flag]],
)
def test_numbers_out_of_range_are_one_line_and_exit_2(
    command: str, flag: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main([*command.split(), f"{flag}={value}"]) == cli.USAGE
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    assert value in captured.err
