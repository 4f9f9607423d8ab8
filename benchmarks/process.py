"""A part of a benchmark in a process of its own, so that its processor time can be told from the others'."""

import multiprocessing
import os
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self

_PATIENCE_S = 300.0


def processor_seconds(pid: int) -> float:
    """Processor time that a process has used so far, all threads, in user and system mode."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Part:
    """A function that runs in a fresh process and answers there what it is sent, one message at a time.

    Args:
        run: called as `run(connection, *arguments)`; a function of a module.
        arguments: for it; they are pickled.
    """

    def __init__(self, run: Callable[..., None], *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(run, theirs, arguments), daemon=True)
        self._process.start()
        theirs.close()

    def ask(self, message: Any) -> Any:
        """Send a message and wait for its answer.

        Raises:
            RuntimeError: none came, or the process has ended.
        """
        try:
            self._connection.send(message)
            if self._connection.poll(_PATIENCE_S):
                return self._connection.recv()
        except (EOFError, OSError) as error:
            raise RuntimeError(f"{self._process.name} ended before it answered {message!r:.80}") from error
        raise RuntimeError(f"{self._process.name} did not answer {message!r:.80} within {_PATIENCE_S:g} s")

    def processor_seconds(self) -> float:
        """What the process has used so far."""
        assert self._process.pid is not None
        return processor_seconds(self._process.pid)

    def close(self) -> None:
        self._connection.close()  # the function's next `recv` ends it
        self._process.join(10)
        if self._process.is_alive():  # it is still busy with what it was sent
            self._process.kill()
            self._process.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _serve(run: Callable[..., None], connection: "Connection[Any, Any]", arguments: tuple[Any, ...]) -> None:
    try:
        run(connection, *arguments)
    except EOFError:  # the other side is done
        connection.close()
