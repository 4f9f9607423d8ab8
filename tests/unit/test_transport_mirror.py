"""The index that a publisher keeps of its own batches."""

import pytest

from kvevents.events import KVEventBatch
from kvevents.index import PrefixIndex
from kvevents.transport.mirror import Mirror
from kvevents.transport.replay_buffer import ReplayBuffer
from kvevents.wire import encode_batch


def test_whatever_keeps_it_from_reading_a_batch_leaves_it_incomplete(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise MemoryError

    buffer = ReplayBuffer(10)
    mirror = Mirror(buffer)
    payload = encode_batch(KVEventBatch(0.0, [], 0))
    mirror.follow(buffer.append(payload), payload)
    assert mirror() is not None
    monkeypatch.setattr(PrefixIndex, "apply", fail)
    with pytest.raises(MemoryError):
        mirror.follow(buffer.append(payload), payload)
    assert mirror() is None
    assert not mirror.is_complete
