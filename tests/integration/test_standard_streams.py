"""Commands whose standard streams are closed, full, or not read to their end."""

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from functools import partial

import pytest

from kvevents import cli

pytestmark = pytest.mark.integration

ONE_REQUEST = ("demo", "--limit", "1", "--workers", "1", "--policy", "kv", "--speed", "100")
SERVERS = (("engine", "--port", "0"), ("serve", "--port", "0"))


def run(
    words: Sequence[str], *, stdout: int | None = subprocess.PIPE, before: Callable[[], None] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kvevents", *words],
        stdout=stdout,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=60,
        check=False,
        preexec_fn=before,
    )


def close(*numbers: int) -> None:
    for number in numbers:
        os.close(number)


@pytest.mark.parametrize("closed", [(0,), (1,), (0, 1)], ids=str)
def test_a_run_with_streams_closed_from_the_start_ends_well(closed: tuple[int, ...]) -> None:
    ended = run(ONE_REQUEST, before=partial(close, *closed))
    assert (ended.returncode, "Traceback" in ended.stderr) == (cli.DONE, False), ended.stderr
    assert ("prompt tokens found cached" in ended.stdout) is (1 not in closed)


def test_closed_stderr_is_no_error() -> None:
    ended = run(ONE_REQUEST, before=partial(close, 2))
    assert ended.returncode == cli.DONE
    assert "prompt tokens found cached" in ended.stdout


@pytest.mark.parametrize("words", [("--version",), ("--help",), ONE_REQUEST, *SERVERS], ids=lambda words: words[0])
def test_a_reader_that_has_left_ends_a_command_quietly(words: Sequence[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ended = run(words, stdout=writing)
    finally:
        os.close(writing)
    assert ended.returncode == cli.DONE
    assert "Traceback" not in ended.stderr
    assert "Broken pipe" not in ended.stderr


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("words", [("--version",), ("--help",), ONE_REQUEST, *SERVERS], ids=lambda words: words[0])
def test_results_that_cannot_be_written_are_one_line_and_exit_3(words: Sequence[str]) -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        ended = run(words, stdout=full)
    finally:
        os.close(full)
    assert ended.returncode == cli.OTHER_SIDE_FAILED
    assert "Traceback" not in ended.stderr
    assert ended.stderr.splitlines()[-1] == "kvevents: [Errno 28] No space left on device"
