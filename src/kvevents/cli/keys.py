"""`kvevents keys`: key pairs for a publisher and those who may read it."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from kvevents.cli.output import Json, note, print_json
from kvevents.transport.security import make_keys


def keys(
    folder: Path,
    /,
    *,
    client: Annotated[tuple[str, ...], Parameter(negative=())] = ("consumer",),
    json: Json = False,
) -> None:
    """Make key pairs, so that only consumers who are listed can read events, and only the publisher can send them.

    The folder gets one folder for the publisher, with the list of who may read, and one for each client. Copy each to
    its machine, and name the file in it that ends in .key_secret: `kvevents relay --keys`, `kvevents serve --keys`.
    Again with other clients it adds them. Nothing is overwritten.

    Example: `kvevents keys keys`

    Example: `kvevents keys keys --client router --client recorder`

    Args:
        folder: Where to make them.
        client: A name for whom to make keys; once for each.
        json: Print the paths as one JSON object.
    """
    made = make_keys(folder, client)
    if json:
        print_json(
            {
                "publisher": str(made.publisher),
                "clients": {name: str(path) for name, path in made.clients.items()},
                "publisher_is_new": made.is_new,
            }
        )
    else:
        print(f"publisher {made.publisher}")
        for name, path in made.clients.items():
            print(f"{name} {path}")
    if not made.is_new:
        note("the publisher's keys were there already; its folder clients has the new ones")
    note("files that end in .key_secret are secret: whoever has one can read the events, or send them")
