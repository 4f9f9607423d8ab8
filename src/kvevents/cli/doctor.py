"""`kvevents doctor`: why an engine's prompts are not found cached."""

import os
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvevents.cli.key_files import consumer_keys
from kvevents.cli.options import Count, Rate
from kvevents.cli.output import Json, print_json
from kvevents.doctor import Diagnosis, Expectations, Verdict, examine

_MARKS = {
    Verdict.FINE: ("fine", "green"),
    Verdict.CAUSE: ("CAUSE", "bold red"),
    Verdict.NOTE: ("note", "yellow"),
    Verdict.SKIPPED: ("-", "dim"),
}


def doctor(
    url: str,
    /,
    *,
    router: str | None = None,
    tokenizer: Path | None = None,
    events: str | None = None,
    replay: str | None = None,
    topic: str | None = None,
    dp_size: Count | None = None,
    block_size: Count | None = None,
    seed: str | None = None,
    adapter: str | None = None,
    model: str | None = None,
    keys: Path | None = None,
    patience: Rate = 4.0,
    json: Json = False,
) -> int:
    """Walk the road of an engine's KV cache events hop by hop and name what is wrong, with what to do.

    It sends the engine a few prompts of random tokens, a few blocks long, and listens to what is announced. Exit code
    1 if a cause was found.

    Keys come from the environment: KVEVENTS_ENGINE_KEY opens the engine, KVEVENTS_ADMIN_TOKEN the router.

    Example: `kvevents doctor http://127.0.0.1:30000 --router http://127.0.0.1:8080`

    Example: `kvevents doctor http://vllm:8000 --events tcp://vllm:5557 --topic kv-events --seed 0 --tokenizer model`

    Args:
        url: The engine's base URL.
        router: Base URL of the `kvevents serve` that ought to know what this engine holds.
        tokenizer: Directory with the model's tokenizer.json and chat template, to be held against the engine's.
        events: Where your consumer looks for events; needed for vLLM, which does not say it.
        replay: Where it asks for them again.
        topic: What topics it listens for.
        dp_size: Ranks, with --events.
        block_size: Tokens in a block, as your consumer has it.
        seed: PYTHONHASHSEED that the fleet ought to have, for consumers that compare hashes.
        adapter: An adapter, by the name that requests have for it.
        model: For the requests; by default the first that the engine names.
        keys: A file of `kvevents keys` that ends in .key_secret, of a consumer that the engine lists.
        patience: Seconds to wait at a hop.
        json: Print the findings as one JSON object.
    """
    diagnosis = examine(
        url,
        Expectations(
            events=events,
            replay=replay,
            topic=topic,
            dp_size=dp_size,
            block_size=block_size,
            seed=seed,
            adapter=adapter,
            tokenizer=tokenizer,
            router=router,
            model=model,
            api_key=os.environ.get("KVEVENTS_ENGINE_KEY"),
            router_token=os.environ.get("KVEVENTS_ADMIN_TOKEN"),
            keys=consumer_keys(keys),
            patience_s=patience,
        ),
    )
    if json:
        print_json(diagnosis)
    else:
        _print(diagnosis)
    return 1 if diagnosis.causes else 0


def _print(diagnosis: Diagnosis) -> None:
    console = Console(highlight=False)
    table = Table.grid(padding=(0, 1))
    for finding in diagnosis.findings:
        word, style = _MARKS[finding.verdict]
        table.add_row(finding.hop, Text(word, style=style), finding.found)
        if finding.fix:
            table.add_row("", "->", Text(finding.fix, style="bold" if finding.verdict is Verdict.CAUSE else "dim"))
    console.print(table)
    causes = diagnosis.causes
    end = "no cause found: the road is open" if not causes else f"cause: {causes[0].hop}: {causes[0].found}"
    console.print(f"{end} ({diagnosis.seconds:.1f} s)")
