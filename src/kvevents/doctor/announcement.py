"""What the engine announces of a prompt, against what is believed of it."""

from kvevents.doctor.listener import Heard, Listener
from kvevents.doctor.report import Hop, Verdict
from kvevents.doctor.visit import Visit
from kvevents.errors import TransportError
from kvevents.events import BlockStored
from kvevents.hashing import DEFAULT_SEEDS, identify_scheme


def probe(visit: Visit, listener: Listener) -> bool:
    """A prompt that is sent is announced."""
    visit.probe = visit.new_prompt()
    try:
        visit.engine.send("/v1/completions", {"model": visit.model, "prompt": list(visit.probe)})
    except TransportError as error:
        return visit.cause(Hop.ANNOUNCED, f"a prompt of token ids is refused: {error}", "see the engine's log")
    found = listener.wait_for_store(visit.probe, visit.beliefs.patience_s)
    if found is None:
        if listener.unread is not None:
            fix = "something else publishes there, or a version that is not known: kvevents lint shows what comes"
            return visit.cause(Hop.ANNOUNCED, f"what is published cannot be read: {listener.unread}", fix)
        heard = len(listener.heard())
        if heard:
            fix = "these are the sockets of another engine: compare the ports on both hosts"
            return visit.cause(Hop.ANNOUNCED, f"{heard} batches came, and none of them has the prompt", fix)
        fix = "see that prefix caching is on; events leave with the engine's next step, and only for whole blocks"
        return visit.cause(Hop.ANNOUNCED, "nothing was published after a prompt", fix)
    heard_in, visit.announced = found
    blocks, tokens = len(visit.announced.block_hashes), len(visit.announced.token_ids)
    visit.fine(Hop.ANNOUNCED, f"the prompt came as a store of {blocks} blocks with {tokens} tokens")
    return _check_topic(visit, heard_in) & _check_block_size(visit)


def check_hashes(visit: Visit) -> bool:
    """Which scheme and seed the hashes follow."""
    assert visit.announced is not None
    wanted = visit.beliefs.seed
    seeds = DEFAULT_SEEDS if wanted is None else (wanted, *DEFAULT_SEEDS)
    report = identify_scheme([visit.announced], seeds=seeds)
    scheme = report.scheme
    if scheme is None or (scheme.startswith("vllm") and report.hash_seed is None):
        fix = "set PYTHONHASHSEED to one value in the whole fleet, if any consumer compares hashes"
        if wanted is not None:
            return visit.cause(Hop.HASHES, f"the hashes do not follow from the seed {wanted!r}: {report.reason}", fix)
        return visit.note(Hop.HASHES, Verdict.NOTE, f"{report.reason}; kvevents goes by tokens and needs none", fix)
    if wanted is not None and scheme.startswith("vllm") and report.hash_seed != wanted:
        fix = f"start the engine with PYTHONHASHSEED={wanted}: consumers that compare hashes find nothing"
        return visit.cause(Hop.HASHES, f"the hash seed is {report.hash_seed!r}, and not {wanted!r}", fix)
    seed = "" if report.hash_seed is None else f" with the seed {report.hash_seed!r}"
    return visit.fine(Hop.HASHES, f"hashes are those of {scheme}{seed}")


def check_cached(visit: Visit) -> bool:
    """The second time, the engine finds the prompt cached."""
    expected = (len(visit.probe) - 1) // visit.block_size * visit.block_size
    cached: int | None = None
    try:
        # Ranks take turns: with one request more than there are ranks, one of them had the prompt before.
        for _ in visit.sources:
            usage = visit.engine.send("/v1/completions", {"model": visit.model, "prompt": list(visit.probe)})
            cached = usage.cached_tokens
            if cached is None or cached >= expected:
                break
    except TransportError as error:
        return visit.cause(Hop.CACHED, f"sent again, the prompt is refused: {error}", "see the engine's log")
    if cached is None:
        fix = "SGLang: --enable-cache-report; vLLM: --enable-prompt-tokens-details. The router's truth check needs it"
        return visit.note(Hop.CACHED, Verdict.NOTE, "the engine does not report what it finds cached", fix)
    if cached < expected:
        fix = "switch prefix caching on; if it is, the cache is so full that a prompt does not stay for a second"
        return visit.cause(Hop.CACHED, f"sent again, {cached} of {expected} tokens are found cached", fix)
    return visit.fine(Hop.CACHED, f"sent again, {cached} of {len(visit.probe)} tokens are found cached")


def check_adapter(visit: Visit, listener: Listener) -> bool:
    """An adapter's blocks are announced under the name that requests have for it."""
    name = visit.beliefs.adapter
    if name is None:
        return visit.note(Hop.ADAPTER, Verdict.SKIPPED, "nobody named an adapter (--adapter)")
    prompt = visit.new_prompt()
    try:
        visit.engine.send("/v1/completions", {"model": name, "prompt": list(prompt)})
    except TransportError as error:
        return visit.cause(Hop.ADAPTER, f"a request for the adapter {name!r} is refused: {error}", "load the adapter")
    found = listener.wait_for_store(prompt, visit.beliefs.patience_s)
    if found is None:
        return visit.cause(Hop.ADAPTER, f"nothing was published for the adapter {name!r}", "see the engine's log")
    announced = _adapter_of(found[1])
    visit.adapter_probe = prompt
    if announced != name:
        said = "no adapter" if announced is None else f"the adapter {announced!r}"
        fix = "let requests and engine have one name for it, or tell the router: prompts.adapters"
        return visit.cause(Hop.ADAPTER, f"requests name {name!r}, and events name {said}", fix)
    return visit.fine(Hop.ADAPTER, f"events name {name!r} as requests do")


def _check_topic(visit: Visit, heard: Heard) -> bool:
    wanted = visit.beliefs.topic
    topic = (heard.topic or b"").decode(errors="replace")
    if wanted is not None and not topic.startswith(wanted):
        found = f"the engine publishes under the topic {topic!r}, and {wanted!r} is listened for"
        return visit.cause(Hop.TOPIC, found, f"listen for {topic!r}, or for every topic")
    return visit.fine(Hop.TOPIC, f"published under {topic!r}")


def _check_block_size(visit: Visit) -> bool:
    assert visit.announced is not None
    size = visit.announced.block_size
    if visit.told_block_size not in (None, size):
        found = f"the engine says that a block has {visit.told_block_size} tokens, and announces blocks of {size}"
        return visit.cause(Hop.BLOCK_SIZE, found, "report it to the engine's authors; tell the router the second")
    wanted = visit.beliefs.block_size
    if wanted is not None and wanted % size:
        found = f"the engine's blocks have {size} tokens, and {wanted} is no multiple of that"
        return visit.cause(Hop.BLOCK_SIZE, found, f"set the consumer's block size to {size}, or a multiple of it")
    return visit.fine(Hop.BLOCK_SIZE, f"{size} tokens")


def _adapter_of(store: BlockStored) -> str | None:
    if store.lora_name is not None or not store.extra_keys:
        return store.lora_name
    first = store.extra_keys[0]
    return first[0] if isinstance(first, list | tuple) and first and isinstance(first[0], str) else None
