"""Says why a publisher and a consumer did not come together, as far as the consumer can tell."""

import zmq

from kvevents.transport.source import Source

HANDSHAKE_FAILED: int = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


def explain_handshake(source: Source, event: int, value: int) -> str:
    """Why a handshake failed and what to do, with no key in it; empty if that has nothing to do with keys.

    Args:
        source: whose live socket it was.
        event: the monitor's, one of `HANDSHAKE_FAILED`.
        value: what came with it.
    """
    other_keys = event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL and value == zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH
    at, keys = source.endpoint, source.keys
    if keys is None:
        wants = (
            f"the publisher at {at} wants keys and this source has none; give it some that the publisher lists"
            " (or what answers is no ZMQ publisher)"
        )
        return wants if other_keys else ""
    if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
        return (
            f"the publisher at {at} does not list the key of {keys.own};"
            " put its public half (.key) into the publisher's folder clients"
        )
    if other_keys:
        return f"the publisher at {at} has no keys; start it with some, or follow it without"
    return (
        f"the publisher at {at} broke the handshake off: it has another key than {keys.publisher_file} says, or none;"
        " copy its publisher.key there"
    )
