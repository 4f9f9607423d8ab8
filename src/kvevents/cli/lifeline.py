"""A command that another process started ends with it, however that one ends."""

import os
import signal
import threading

VARIABLE = "KVEVENTS_END_WITH_STDIN"
"""Set in a child's environment by a parent that holds the other end of its stdin."""

GRACE_S = 3.0


def hold() -> None:
    """End this process when its stdin closes, if the environment asks for it.

    The kernel closes the pipe even when the parent is killed, so no orphan stays. First SIGTERM, the way to
    end in order; SIGKILL when that is not followed within 3 seconds.
    """
    if os.environ.pop(VARIABLE, None):
        threading.Thread(target=_wait, name="lifeline", daemon=True).start()


def _wait() -> None:
    while os.read(0, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(GRACE_S)
    os.kill(os.getpid(), signal.SIGKILL)
