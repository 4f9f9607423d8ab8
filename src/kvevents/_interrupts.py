"""Ctrl-C while the `kvevents` command is still being imported ends it at once and says nothing."""

import itertools
import os
import signal
import sys


def _is_command() -> bool:
    """Whether this process is `kvevents` or `python -m kvevents`, and not a program that uses the library."""
    if os.path.basename(sys.argv[0] if sys.argv else "") == "kvevents":
        return True
    words = sys.orig_argv
    return any(pair == ("-m", "kvevents") for pair in itertools.pairwise(words))


if _is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def may_be_handled() -> None:
    """Everything is imported: from here on an interrupt is an exception again, which commands clean up on."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
