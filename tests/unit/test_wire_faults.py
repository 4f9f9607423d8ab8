"""What the codec says about payloads that are broken, and about events that cannot be used."""

from typing import Any

import msgspec
import pytest

from kvevents.errors import WireError
from kvevents.events import (
    AllBlocksCleared,
    BlockRemoved,
)
from kvevents.wire import decode_batch
from payloads import COMMON, pack, stored_map


def nested(levels: int) -> list[Any]:
    return [nested(levels - 1)] if levels > 1 else []


WRONG = [
    (stored_map(block_hashes=5), "wrong-type", "block_hashes: expected an array of hashes, found an unsigned integer"),
    (
        stored_map(block_hashes=[1, None]),
        "wrong-type",
        "block_hashes: expected a hash: an integer or binary, found nil",
    ),
    (stored_map(block_hashes=[True]), "wrong-type", "found a boolean"),
    (stored_map(block_hashes=["ab"]), "wrong-type", "found a string"),
    (stored_map(block_hashes=[b""]), "out-of-range", "block_hashes: expected a hash of at least one byte"),
    (stored_map(parent_block_hash=1.5), "wrong-type", "parent_block_hash: expected a hash"),
    (stored_map(token_ids=None), "wrong-type", "token_ids: expected an array of token ids, or of pairs"),
    (stored_map(token_ids=[1, -1]), "out-of-range", "token_ids: expected a token id from 0, found -1"),
    (stored_map(token_ids=[1, 1.0]), "wrong-type", "token_ids: expected a token id, found a float"),
    (stored_map(token_ids=[1, [1, 2]]), "wrong-type", "token_ids: expected a token id, found an array"),
    (stored_map(token_ids=[[1, 2], 1]), "wrong-type", "token_ids: expected a pair of token ids, found an unsigned"),
    (stored_map(token_ids=[[1, 2, 3]]), "wrong-type", "token_ids: expected a pair of token ids, found an array"),
    (stored_map(block_size=-1), "out-of-range", "block_size: expected an integer from 0 to 2^64-1, found -1"),
    (stored_map(block_size=None), "wrong-type", "block_size: expected an integer, found nil"),
    (stored_map(lora_id="a"), "wrong-type", "lora_id: expected an integer or nil"),
    (stored_map(lora_id=2**63), "out-of-range", "lora_id: expected an integer below 2^63"),
    (stored_map(medium=0), "wrong-type", "medium: expected a string or nil"),
    (stored_map(extra_keys=["a"]), "wrong-type", "extra_keys: expected nil or an array for each block"),
    (stored_map(metadata=[]), "wrong-type", "metadata: expected a map or nil"),
    (stored_map(metadata={"cache_salt": 5}), "wrong-type", "cache_salt: expected a string or nil"),
    (["BlockStored", *COMMON, "a", "b"], "wrong-type", "extra_keys: expected an array of one entry a block, or nil"),
    (["BlockStored", *COMMON, 5], "wrong-type", "lora_name: expected a string or nil"),
    (["BlockStored", [1], None, [1]], "missing-field", "expected the field block_size, found none"),
    ({"type": "BlockStored", "block_hashes": [1], "token_ids": [1], "block_size": 1}, "missing-field", "parent_block"),
    ({"type": "BlockRemoved", "medium": "GPU"}, "missing-field", "expected the field block_hashes"),
    ({"block_hashes": [1]}, "missing-field", "expected the field type, found none"),
    ({"type": 5}, "wrong-type", "type: expected a string"),
    ({"type": "AllBlocksCleared", 5: 6}, "wrong-type", "event: expected names of fields"),
    ([], "missing-field", "expected the field type"),
    ([5, 6], "wrong-type", "type: expected a string"),
    ("AllBlocksCleared", "wrong-type", "event: expected an array or a map, found a string"),
    ({"type": "AllBlocksCleared", "deep": nested(40)}, "over-limit", "at most 32 levels"),
    ({"type": "AllBlocksCleared"} | {f"field{i}": i for i in range(65)}, "over-limit", "at most 64 unknown fields"),
    ({"type": "AllBlocksCleared", "later": msgspec.Raw(b"\x81\x80\x01")}, "wrong-type", "later: expected a value"),
]


class TestUnusableEvents:
    @pytest.mark.parametrize(("event", "code", "reason"), WRONG, ids=[reason for *_, reason in WRONG])
    def test_an_event_that_cannot_be_used(self, event: Any, code: str, reason: str) -> None:
        payload = pack([0, [["AllBlocksCleared"], event, ["BlockRemoved", [1], "GPU"]], 0])
        with pytest.raises(WireError) as refused:
            decode_batch(payload)
        assert reason in refused.value.reason
        offset = 3 + len(pack(["AllBlocksCleared"]))
        assert offset <= refused.value.offset <= offset + len(pack(event))
        batch = decode_batch(payload, strict=False)
        assert batch.events == [AllBlocksCleared(), BlockRemoved([1], "GPU")]
        [skipped] = batch.skipped
        assert (skipped.code, skipped.offset) == (code, offset)
        assert reason in skipped.reason

    def test_a_field_that_comes_twice(self) -> None:
        twice = b"\x83\xa4type\xb0AllBlocksCleared\xa1x\x01\xa1x\x02"
        also = b"\x83\xa4type\xacBlockRemoved\xacblock_hashes\x90\xacblock_hashes\x90"
        types = b"\x82\xa4type\xb0AllBlocksCleared\xa4type\xb0AllBlocksCleared"
        for event in (twice, also, types):
            batch = decode_batch(pack([0, [msgspec.Raw(event)]]), strict=False)
            assert [skipped.code for skipped in batch.skipped] == ["duplicate-field"]

    def test_more_events_than_the_limit_refuse_the_batch(self) -> None:
        with pytest.raises(WireError, match="at most 131072 events in a batch, found 131073"):
            decode_batch(pack([0, [None] * (2**17 + 1)]), strict=False)

    def test_a_payload_over_the_limit_is_refused(self) -> None:
        with pytest.raises(WireError, match="at most 67108864 bytes in a payload") as refused:
            decode_batch(bytes(2**26 + 1))
        assert refused.value.offset == 2**26


class TestBrokenBytes:
    SAMPLE = pack(
        [
            1.5,
            [["BlockStored", *COMMON, {"cache_salt": "x"}], stored_map(later=[1.5, b"xyz"]), ["Unheard", {"a": [1]}]],
            0,
        ]
    )

    def test_every_cut_is_refused_whole(self) -> None:
        for end in range(len(self.SAMPLE)):
            with pytest.raises(WireError, match="cut off") as refused:
                decode_batch(self.SAMPLE[:end], strict=False)
            assert refused.value.offset <= end

    def test_every_change_of_a_byte_reads_or_is_refused(self) -> None:
        read = refused = 0
        for index in range(len(self.SAMPLE)):
            for byte in range(256):
                changed = self.SAMPLE[:index] + bytes([byte]) + self.SAMPLE[index + 1 :]
                try:
                    decode_batch(changed, strict=False)
                    read += 1
                except WireError:
                    refused += 1
        assert read > 1000
        assert refused > 1000

    @pytest.mark.parametrize(
        ("broken", "reason", "offset"),
        [
            (b"\x93\x00\x91\x92\xa7Unheard\xc1\x00", "found the reserved byte 0xc1", 12),
            (b"\x93\x00\x91\x92\xa7Unheard\xa2\xc3\x28\x00", "expected a UTF-8 string", 13),
            (b"\x92\x00\x90\x00", "expected the end of the payload, found 1 more bytes", 3),
            (b"\x92\x00\xdd\xff\xff\xff\xff", "expected 4294967295 more bytes for an array, found 0", 2),
            (b"\x92\x00\x91\xdf\xff\xff\xff\xff", "expected 8589934590 more bytes for a map, found 0", 3),
            (b"\x92\x00\x91\xc9\xff\xff\xff\xff\x01", "expected 4294967296 more bytes for an extension", 3),
            (b"\x92\xcb\x00", "expected 8 more bytes for a float, found 1", 1),
            (b"", "expected 1 more bytes for a value, found 0", 0),
        ],
    )
    def test_the_error_says_what_and_where(self, broken: bytes, reason: str, offset: int) -> None:
        with pytest.raises(WireError) as refused:
            decode_batch(broken, strict=False)
        assert reason in refused.value.reason
        assert refused.value.offset == offset
        assert str(refused.value) == f"{refused.value.reason} (at byte {offset})"
