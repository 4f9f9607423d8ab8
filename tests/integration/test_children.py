"""Child processes: ready or explained, ended in order or by force, never orphans."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvevents.cli import lifeline
from kvevents.errors import TransportError
from kvevents.simulation import children
from kvevents.simulation.children import Child

pytestmark = pytest.mark.integration

READY = """
import signal, sys, time
print('{"url": "http://127.0.0.1:1"}', flush=True)
"""


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program that stands in for `kvevents` in `Child.start`; a test writes it."""
    program = tmp_path / "program.py"
    monkeypatch.setattr(children, "PROGRAM", (sys.executable, str(program)))
    return program


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def wait_until_gone(pid: int, within_s: float) -> None:
    deadline = time.monotonic() + within_s
    while is_running(pid):
        assert time.monotonic() < deadline, f"{pid} still runs after {within_s} s"
        time.sleep(0.02)


def test_a_command_that_fails_is_explained_by_its_last_words() -> None:
    with pytest.raises(TransportError, match=r"engine 7 \(pid \d+\) ended with exit code 2: .*nonsense.*before it was"):
        asyncio.run(Child.start("engine 7", ["nonsense"]))


def test_a_ready_child_says_where_it_listens_and_ends_in_order(command: Path) -> None:
    command.write_text(READY + "sys.stdin.read()")

    async def scenario() -> Child:
        child = await Child.start("w", [])
        assert child.url == "http://127.0.0.1:1"
        assert child.is_running
        await child.stop()
        await child.stop()
        return child

    child = asyncio.run(scenario())
    assert not child.is_running
    assert "was ended by SIGTERM" in child.obituary()


def test_a_child_that_does_not_listen_is_ended_by_force(command: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "STOP_GRACE_S", 0.2)
    command.write_text("import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)" + READY + "time.sleep(600)")

    async def scenario() -> Child:
        child = await Child.start("w", [])
        await child.stop()
        return child

    assert "was ended by SIGKILL" in asyncio.run(scenario()).obituary()


def test_silence_is_an_error_and_ends_the_child(command: Path, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    command.write_text(f"import os, time; open({str(pid_file)!r}, 'w').write(str(os.getpid())); time.sleep(600)")
    with pytest.raises(TransportError, match="expected to be ready within 1 s"):
        asyncio.run(Child.start("w", [], ready_within_s=1.0))
    wait_until_gone(int(pid_file.read_text()), 1)


@pytest.mark.parametrize("said", ["hello", "{}", "[1]"])
def test_another_first_line_is_an_error(command: Path, said: str) -> None:
    command.write_text(f"print({said!r}, flush=True); import sys; sys.stdin.read()")
    with pytest.raises(TransportError, match="expected a JSON line with `url`"):
        asyncio.run(Child.start("w", []))


def test_a_chatty_child_is_not_blocked_and_its_last_lines_are_kept(command: Path) -> None:
    command.write_text(
        READY + "sys.stderr.write('x' * 300_000 + '\\n'); print('y' * 300_000, flush=True);"
        "[print('word', n, file=sys.stderr) for n in range(100)]; sys.exit(4)"
    )

    async def scenario() -> Child:
        child = await Child.start("w", [])
        await asyncio.wait_for(child.ended(), 10)
        await child.stop()
        return child

    obituary = asyncio.run(scenario()).obituary()
    assert "ended with exit code 4" in obituary
    assert obituary.endswith("word 95; word 96; word 97; word 98; word 99")


@pytest.mark.parametrize(
    ("body", "end"), [("", signal.SIGTERM), ("signal.signal(signal.SIGTERM, signal.SIG_IGN)", signal.SIGKILL)]
)
def test_a_command_ends_when_its_parents_pipe_closes(body: str, end: signal.Signals) -> None:
    program = f"import signal, time; from kvevents.cli import lifeline; {body}\nlifeline.hold(); time.sleep(600)"
    environment = os.environ | {lifeline.VARIABLE: "1"}
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, env=environment) as process:
        process.communicate(timeout=20)
        assert process.returncode == -end


def test_children_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    command = tmp_path / "program.py"
    command.write_text("from kvevents.cli import lifeline; lifeline.hold()" + READY + "time.sleep(600)")
    parent = (
        "import asyncio, sys, time; from kvevents.simulation import children\n"
        f"children.PROGRAM = (sys.executable, {str(command)!r})\n"
        "async def main():\n"
        "    child = await children.Child.start('w', [])\n"
        "    print(child.pid, flush=True)\n"
        "    await asyncio.sleep(600)\n"
        "asyncio.run(main())"
    )
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert is_running(pid)
        process.kill()
    wait_until_gone(pid, 10)
