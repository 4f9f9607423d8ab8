"""A network of its own for a benchmark, with nothing but the loopback: some peers listen on every interface."""

import os
import shutil
import subprocess
import sys

_INSIDE = "KVEVENTS_BENCHMARK_ALONE"
_BEGIN = 'ip link set lo up && exec "$@"'


def enter() -> None:
    """Run this program again inside, where the machine allows it; else go on outside and say so.

    Whatever is fetched from elsewhere has to be there before.
    """
    if os.environ.get(_INSIDE):
        return
    options = ["--net"] if os.geteuid() == 0 else ["--user", "--map-root-user", "--net"]
    begin = ["unshare", *options, "sh", "-c", _BEGIN, "sh"]
    if shutil.which("unshare") and not subprocess.run([*begin, "true"], capture_output=True, check=False).returncode:
        os.environ[_INSIDE] = "1"
        os.execvp("unshare", [*begin, *sys.orig_argv])
    print(
        "no network namespace can be made here: a peer listens on all interfaces while it is measured", file=sys.stderr
    )
