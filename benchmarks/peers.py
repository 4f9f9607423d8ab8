"""What the package is measured against, in an environment of its own: `.venv-peers`, made and filled when it is needed.

A peer that cannot be had here is skipped, with the reason: `Unavailable`.
"""

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent
ENVIRONMENT = ROOT / ".venv-peers"


class Unavailable(Exception):  # noqa: N818 - a reason to skip, not a fault
    """A peer cannot be had here; the message says why."""


def site_packages() -> Path:
    """Where the environment's packages lie."""
    scheme = {"base": str(ENVIRONMENT), "platbase": str(ENVIRONMENT)}
    return Path(sysconfig.get_path("purelib", "venv", scheme))


def install(*requirements: str, dependencies: bool) -> Path:
    """Put exact versions into the environment, unless they are there, and say where.

    Raises:
        Unavailable: pip could not install them.
    """
    done = ENVIRONMENT / ".installed"
    installed = done.read_text().splitlines() if done.exists() else []
    missing = [requirement for requirement in requirements if requirement not in installed]
    if missing:
        if not (ENVIRONMENT / "bin").exists():
            venv.create(ENVIRONMENT, with_pip=True)
        pip = [str(ENVIRONMENT / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        options = [] if dependencies else ["--no-deps"]
        print(f"peers: installing {', '.join(missing)} into {ENVIRONMENT.name}", file=sys.stderr)
        run = subprocess.run([*pip, *options, *missing], capture_output=True, text=True, check=False)
        if run.returncode != 0:
            reason = run.stderr.strip().splitlines()[-1:] or ["no reason given"]
            raise Unavailable(f"pip could not install {', '.join(missing)}: {reason[0]}")
        done.write_text("\n".join([*installed, *missing]) + "\n")
    return site_packages()
