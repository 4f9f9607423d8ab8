"""What whoever asks believes of the engine: what their router is set to, or ought to be."""

from pathlib import Path

import msgspec

from kvevents.transport import ConsumerKeys


class Expectations(msgspec.Struct, frozen=True, kw_only=True):
    """Beliefs to hold against the engine; None: none.

    Attributes:
        events: where its events are, such as `tcp://10.0.0.5:5557`; of rank 0.
        replay: its replay socket.
        topic: topics begin with it.
        dp_size: ranks, where the engine does not say.
        block_size: tokens in a block.
        seed: PYTHONHASHSEED.
        adapter: an adapter, by the name that requests have for it.
        tokenizer: directory with the model's `tokenizer.json` and chat template.
        router: base URL of `kvevents serve`.
        model: for the requests; by default the first that the engine names.
        api_key: of the engine.
        router_token: the router's admin token.
        keys: of a consumer that the engine's publisher lists.
        patience_s: how long to wait at a hop.
    """

    events: str | None = None
    replay: str | None = None
    topic: str | None = None
    dp_size: int | None = None
    block_size: int | None = None
    seed: str | None = None
    adapter: str | None = None
    tokenizer: Path | None = None
    router: str | None = None
    model: str | None = None
    api_key: str | None = None
    router_token: str | None = None
    keys: ConsumerKeys | None = None
    patience_s: float = 4.0
