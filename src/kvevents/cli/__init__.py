"""The `kvevents` command: one file per subcommand, imported only when it is called.

A command is a function in `kvevents.cli.<name>` of the same name: its signature parses, it calls one public
function, renders, and returns an exit code (None is 0). Its docstring is its help and holds an example.
Results go to stdout, notes to stderr.

Exit codes: 0 done, 1 the answer is no, 2 wrong usage or settings, 3 the other side failed, 130 interrupted.
"""

import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError, Parameter, UnusedCliTokensError

from kvevents import __version__, _interrupts
from kvevents.cli import lifeline, options, standard
from kvevents.errors import ConfigError, KVEventsError

DONE = 0
ANSWER_IS_NO = 1
USAGE = 2
OTHER_SIDE_FAILED = 3
INTERRUPTED = 130

COMMANDS: dict[str, str] = {
    "demo": "Replay a real trace through a fleet, round robin and KV-aware.",
    "diff": "Compare what an index believes with what an engine holds.",
    "doctor": "Find out why an engine's prompts are not found cached.",
    "engine": "Serve a simulated engine over HTTP.",
    "keys": "Make keys, so that only those who are listed can read events.",
    "lint": "Check a stream of events: a capture, or a running engine.",
    "record": "Write what engines publish to files.",
    "relay": "Coalesce engines' events, beside them, for whoever reads them.",
    "replay": "Play a recorded file as the engine.",
    "serve": "Route requests to the engines that have their prompts cached.",
    "simulate": "Replay a trace through a fleet in virtual time, several policies side by side.",
    "tail": "Print the live events of workers.",
    "top": "Show engines or a router live, on the whole terminal.",
}
"""Every command with its line in `kvevents --help`."""

HELP = """KV cache events for LLM serving: record, coalesce, carry, index, route and see.

Example: `kvevents demo --limit 50`

Exit codes: 0 done, 1 the answer is no, 2 wrong usage, 3 the other side failed.
"""


def build_app(called: str | None = None) -> App:
    """The command line as a value, no command imported.

    Args:
        called: the command about to run: its help is its docstring, where the others have their line of `COMMANDS`.
    """
    app = App(
        name="kvevents",
        help=HELP,
        help_format="markdown",
        version=__version__,
        version_flags=["--version"],
        suppress_keyboard_interrupt=False,
        console=standard.ResultConsole(),
        default_parameter=Parameter(converter=options.read_value),
    )
    for name, summary in COMMANDS.items():
        app.command(f"kvevents.cli.{name}:{name}", name=name, help=None if name == called else summary)
    return app


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; an error is one line on stderr.

    Args:
        arguments: what follows the program's name; None means `sys.argv[1:]`.
    """
    _interrupts.may_be_handled()
    standard.open_all()
    lifeline.hold()
    words = sys.argv[1:] if arguments is None else list(arguments)
    app = build_app(called=words[0] if words else None)
    try:
        code = app(words, exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
    except (CycloptsError, ConfigError) as error:
        return _fail(error, USAGE)
    except KVEventsError as error:
        return _fail(error, OTHER_SIDE_FAILED)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        standard.give_up(sys.stdout)  # whoever reads our output has read enough
        return DONE
    except OSError as error:
        standard.give_up(sys.stdout)
        return _fail(error, OTHER_SIDE_FAILED)
    return code if isinstance(code, int) else DONE


def _fail(error: Exception, code: int) -> int:
    text = str(error)
    if isinstance(error, UnusedCliTokensError):
        text = f"unexpected {' '.join(error.unused_tokens or ())}; see --help"
    print("kvevents:", *text.split(), file=sys.stderr)
    return code
