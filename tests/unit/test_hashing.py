import array
import ctypes
import hashlib
import struct
from typing import Any

import pytest

from kvevents.errors import ConfigError
from kvevents.hashing import HashChain, block_hashes


def sha_id(data: bytes) -> int:
    return int.from_bytes(hashlib.sha256(data).digest()[:8], "big", signed=True)


class TestExtend:
    def test_an_id_is_the_head_of_the_page_digest_signed(self) -> None:
        chain = HashChain.root(3).extend([1, 2, 3])
        assert list(chain.ids) == [sha_id(struct.pack("<3I", 1, 2, 3))]

    def test_a_page_is_chained_to_the_full_digest_above(self) -> None:
        first = hashlib.sha256(struct.pack("<2I", 1, 2)).digest()
        chain = HashChain.root(2).extend([1, 2]).extend([3, 4])
        assert list(chain.ids) == [sha_id(first + struct.pack("<2I", 3, 4))]
        assert chain.parent_id == int.from_bytes(first[:8], "big", signed=True)

    def test_a_wide_token_widens_its_page_alone(self) -> None:
        first = hashlib.sha256(b"\xff" + struct.pack("<2Q", 1, 1 << 32)).digest()
        chain = HashChain.root(2).extend([1, 1 << 32, 3, 4])
        assert chain.ids[1] == sha_id(first + struct.pack("<2I", 3, 4))

    def test_a_salt_seeds_the_chain_and_an_extra_key_does_not(self) -> None:
        seed = hashlib.sha256(b"sglang-cache-salt-v1\0tenant").digest()
        salted = HashChain.root(1, cache_salt="tenant", extra_key="adapter").extend([7])
        assert list(salted.ids) == [sha_id(seed + struct.pack("<I", 7))]
        assert salted.parent_id is None
        plain = list(HashChain.root(1).extend([7]).ids)
        assert list(HashChain.root(1, extra_key="adapter").extend([7]).ids) == plain
        assert list(HashChain.root(1, cache_salt="").extend([7]).ids) == plain

    def test_bigrams_hash_both_members_and_continue_from_the_overlap(self) -> None:
        root = HashChain.root(2, bigram=True)
        whole = root.extend([1, 2, 3, 4, 5])
        assert whole.ids[0] == sha_id(struct.pack("<4I", 1, 2, 2, 3))
        assert list(root.extend([1, 2, 3]).extend([3, 4, 5]).ids) == list(whole.ids)[1:]

    @pytest.mark.parametrize("typecode", ["i", "I", "l", "L", "q", "Q", "h", "B"])
    def test_any_integer_buffer_hashes_like_a_list(self, typecode: str) -> None:
        tokens = list(range(1, 9))
        assert list(HashChain.root(4).extend(array.array(typecode, tokens)).ids) == list(
            HashChain.root(4).extend(tokens).ids
        )

    def test_a_strided_or_foreign_buffer_is_copied(self) -> None:
        tokens = array.array("i", [1, 9, 2, 9, 3, 9, 4, 9])
        expected = list(HashChain.root(4).extend([1, 2, 3, 4]).ids)
        assert list(HashChain.root(4).extend(memoryview(tokens)[::2]).ids) == expected
        big_endian = (ctypes.c_uint32.__ctype_be__ * 4)(1, 2, 3, 4)
        assert list(HashChain.root(4).extend(big_endian).ids) == expected

    def test_more_than_one_dimension_is_refused(self) -> None:
        matrix = memoryview(array.array("i", [1, 2, 3, 4])).cast("B").cast("i", (2, 2))
        with pytest.raises(ValueError, match="expected a buffer of one dimension, got 2"):
            HashChain.root(4).extend(matrix)

    def test_many_pages_hash_like_few(self) -> None:
        tokens = array.array("I", range(4096))
        at_once = HashChain.root(4).extend(tokens)
        step = HashChain.root(4)
        ids: list[int] = []
        for start in range(0, 4096, 16):
            step = step.extend(tokens[start : start + 16])
            ids += step.ids
        assert list(at_once.ids) == ids

    @pytest.mark.parametrize(("bigram", "tokens"), [(False, [1, 2, 3]), (True, [1, 2]), (True, [1, 2, 3, 4])])
    def test_a_partial_page_is_refused(self, bigram: bool, tokens: list[int]) -> None:
        with pytest.raises(ValueError, match=r"expected whole pages of 2 .*, got \d tokens, which leave 1"):
            HashChain.root(2, bigram=bigram).extend(tokens)

    @pytest.mark.parametrize("tokens", [[1, -2], array.array("i", [1, -2]), array.array("q", [1, -2])])
    def test_a_negative_token_is_refused_with_its_position(self, tokens: Any) -> None:
        with pytest.raises(ValueError, match="got -2 at position 1"):
            HashChain.root(2).extend(tokens)

    @pytest.mark.parametrize("tokens", [[1, "2"], [1, 2.0], 7, array.array("d", [1, 2])])
    def test_what_is_no_integer_is_refused(self, tokens: Any) -> None:
        with pytest.raises(TypeError, match="token ids: expected"):
            HashChain.root(2).extend(tokens)

    def test_nothing_adds_nothing(self) -> None:
        chain = HashChain.root(2).extend([1, 2])
        assert len(chain.extend([])) == 0
        assert chain.extend([]).parent_id == chain.ids[0]


class TestSplit:
    def test_parts_share_the_hashes_and_know_what_is_above(self) -> None:
        chain = HashChain.root(1).extend(range(6))
        head, tail = chain.split(4)
        assert (len(head), len(tail)) == (4, 2)
        assert [*head.ids, *tail.ids] == list(chain.ids)
        assert tail.parent_id == head.ids[-1]
        assert list(head.extend([4, 5]).ids) == list(tail.ids)
        again, _ = tail.split(1)
        assert list(again.extend([5]).ids) == list(tail.ids)[1:]

    def test_an_end_may_be_empty(self) -> None:
        chain = HashChain.root(1).extend(range(2))
        head, tail = chain.split(0)
        assert (list(head.ids), list(tail.ids)) == ([], list(chain.ids))
        head, tail = chain.split(2)
        assert (list(head.ids), tail.parent_id) == (list(chain.ids), chain.ids[-1])

    def test_more_pages_than_there_are_is_refused(self) -> None:
        with pytest.raises(ValueError, match="expected at most 1 to split off, got 2"):
            HashChain.root(1).extend([1]).split(2)


class TestRoot:
    def test_says_what_it_was_made_with(self) -> None:
        chain = HashChain.root(16, extra_key="", cache_salt="salt", bigram=True).extend([])
        assert (chain.page_size, chain.extra_key, chain.cache_salt, chain.bigram) == (16, "", "salt", True)

    def test_ids_are_an_int64_view(self) -> None:
        ids = HashChain.root(1).extend([1, 2]).ids
        assert (ids.format, ids.itemsize, ids.shape, ids.readonly) == ("q", 8, (2,), True)

    def test_a_page_of_nothing_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="expected at least 1, got 0"):
            HashChain.root(0)

    def test_an_unknown_scheme_names_the_known_ones(self) -> None:
        with pytest.raises(ConfigError, match=r'expected one of sglang, .*, content, got "md5"'):
            HashChain.root(1, scheme="md5")  # type: ignore[arg-type]  # what is tested


class TestBlockHashes:
    def test_are_the_ids_of_the_whole_blocks(self) -> None:
        ids = block_hashes([1, 2, 3, 4, 5], 2, cache_salt="s")
        assert list(ids) == list(HashChain.root(2, cache_salt="s").extend([1, 2, 3, 4]).ids)
        assert len(block_hashes([1, 2, 3, 4], 2, bigram=True)) == 1
        assert len(block_hashes([], 2, bigram=True)) == 0

    def test_default_format_wraps_by_the_extra_key_of_a_named_adapter(self) -> None:
        plain = block_hashes([1], 1)[0]
        seed = hashlib.sha256(b"sglang-kv-event-namespace-v1\1" + struct.pack("<Q", 1) + b"k\0").digest()
        wrapped = sha_id(seed + struct.pack(">q", plain))
        assert block_hashes([1], 1, extra_key="k", named=True)[0] == wrapped
        assert block_hashes([1], 1, extra_key="k")[0] == plain
        assert block_hashes([1], 1, named=True)[0] == plain

    def test_dynamo_format_wraps_every_namespace(self) -> None:
        seed = hashlib.sha256(
            b"sglang-kv-event-namespace-v1\1" + struct.pack("<Q", 1) + b"k\1" + struct.pack("<Q", 2) + b"ss"
        ).digest()
        unwrapped = block_hashes([1], 1, cache_salt="ss")[0]
        expected = sha_id(seed + struct.pack(">q", unwrapped))
        assert block_hashes([1], 1, extra_key="k", cache_salt="ss", event_format="dynamo")[0] == expected
        assert block_hashes([1], 1, event_format="dynamo")[0] == block_hashes([1], 1)[0]

    def test_content_hashes_tell_namespaces_apart(self) -> None:
        keys = [(None, None), ("m", None), (None, "s"), ("m", "s")]
        ids = [
            list(block_hashes([1, 2, 3, 4], 2, scheme="content", extra_key=key, cache_salt=salt)) for key, salt in keys
        ]
        assert len({block for chain in ids for block in chain}) == 8
        assert ids[0][:1] == list(HashChain.root(2, scheme="content").extend([1, 2]).ids)
        assert list(block_hashes([1], 1, scheme="content", event_format="dynamo", cache_salt="s")) == list(
            block_hashes([1], 1, scheme="content", cache_salt="s")
        )

    def test_an_unknown_format_names_the_known_ones(self) -> None:
        with pytest.raises(ConfigError, match='event_format: expected one of default, dynamo, got "x"'):
            block_hashes([1], 1, event_format="x")  # type: ignore[arg-type]  # what is tested
