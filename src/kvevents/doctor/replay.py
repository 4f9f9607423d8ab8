"""Whether a replay socket answers."""

import zmq

from kvevents.transport import Source
from kvevents.transport.frames import read_reply, sequence_frame
from kvevents.transport.sockets import connect_socket, new_context, open_socket

_ABOVE_ALL = 2**62
"""No engine has published so many batches: it answers with the end mark alone."""


def answers_replay(source: Source, *, seconds: float) -> bool:
    """Ask a source's replay socket for nothing, and wait for the end mark.

    Raises:
        TransportError: the endpoint cannot be used.
        WireError: the answer is none of a replay.
    """
    assert source.replay_endpoint is not None
    context = new_context()
    socket = open_socket(zmq.DEALER, source.replay_endpoint, context)
    try:
        if source.keys is not None:
            source.keys.secure(socket)
        connect_socket(socket, source.replay_endpoint)
        socket.send_multipart((b"", sequence_frame(_ABOVE_ALL)))
        if not socket.poll(int(seconds * 1000)):
            return False
        read_reply(socket.recv_multipart())
        return True
    finally:
        socket.close(0)
        context.term()
