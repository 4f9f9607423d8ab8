"""Standard streams as a command needs them, whatever it was started with."""

import os
import sys
from typing import TextIO

from rich.console import Console


def open_all() -> None:
    """Open the null device in the place of a standard stream that the process was started without.

    Else the next file or socket would take its number, and be written to or closed as if it were the stream.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
        os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


def give_up(stream: TextIO) -> None:
    """Send what is still buffered nowhere: it could not be written, and must not fail again at exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, stream.fileno())
    os.close(null)


class ResultConsole(Console):
    """A console on stdout whose reader may leave: that is an error like any other, not an exit."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError
