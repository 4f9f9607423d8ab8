"""What vLLM's schemes take and refuse; that their hashes are right is shown in `property` and `golden`."""

import array
from typing import Any

import pytest

from kvevents.errors import ConfigError
from kvevents.hashing import HashChain, HashScheme, block_digests, block_hashes

IMAGE: tuple[str, int] = ("img", 0)
DIGEST = b"\x01" * 32


class TestForms:
    def test_hashes_are_the_ends_of_digests_unsigned(self) -> None:
        ids = block_hashes(range(32), 16, scheme="vllm-sha256")
        digests = block_digests(range(32), 16, scheme="vllm-sha256")
        assert (ids.format, list(ids)) == ("Q", [int.from_bytes(digest[-8:], "big") for digest in digests])

    @pytest.mark.parametrize(
        ("scheme", "size"),
        [
            ("sglang", 32),
            ("vllm-sha256", 32),
            ("vllm-sha256-cbor", 32),
            ("vllm-xxhash", 16),
            ("vllm-xxhash-cbor", 16),
            ("vllm-builtin", 8),
            ("content", 8),
        ],
    )
    def test_a_digest_is_as_long_as_its_algorithm_makes_it(self, scheme: HashScheme, size: int) -> None:
        seed: dict[str, Any] = {"hash_seed": "0"} if scheme.startswith("vllm") else {}
        digests = block_digests([1, 2, 3, 4, 5], 2, scheme=scheme, **seed)
        assert [len(digest) for digest in digests] == [size, size]
        assert len(set(digests)) == 2
        chain = HashChain.root(2, scheme=scheme, **seed).extend([1, 2, 3, 4])
        assert chain.digests == digests
        assert [id_ % 2**64 for id_ in chain.ids] == [
            id_ % 2**64 for id_ in block_hashes([1, 2, 3, 4], 2, scheme=scheme, **seed)
        ]
        rest = block_digests([3, 4], 2, scheme=scheme, parent_digest=digests[0], **seed)
        assert rest == digests[1:]

    def test_many_blocks_hash_like_few(self) -> None:
        tokens = array.array("I", range(4096))
        whole = block_digests(tokens, 4, scheme="vllm-xxhash", hash_seed="0")
        parts: list[bytes] = []
        for start in range(0, 4096, 64):
            above = parts[-1] if parts else None
            part = tokens[start : start + 64]
            parts += block_digests(part, 4, scheme="vllm-xxhash", hash_seed="0", parent_digest=above)
        assert whole == parts


class TestNamespaces:
    def hashes(self, **settings: Any) -> list[int]:
        return list(block_hashes([1, 2, 3, 4], 2, scheme="vllm-sha256-cbor", **settings))

    def test_whatever_separates_prompts_changes_all_their_hashes(self) -> None:
        prompts: list[dict[str, Any]] = [
            {},
            {"cache_salt": "s"},
            {"extra_key": "ad"},
            {"extra_key": "ad", "adapter_path": "/p"},
            {"lora_id": 1},
            {"extra_keys": [[IMAGE]]},
            {"extra_keys": [[["img", 1]]]},
            {"extra_keys": [[DIGEST]]},
            {"hash_seed": "1"},
        ]
        blocks = [block for prompt in prompts for block in self.hashes(**prompt)]
        assert len(set(blocks)) == 2 * len(prompts)
        assert self.hashes(cache_salt="", extra_keys=[None, []]) == self.hashes()
        assert self.hashes(hash_seed="vllm-none-hash") == self.hashes()

    def test_keys_of_a_block_leave_those_above_alone(self) -> None:
        assert self.hashes(extra_keys=[None, [IMAGE]])[0] == self.hashes()[0]
        assert self.hashes(extra_keys=[None, [IMAGE]])[1] != self.hashes()[1]

    def test_forms_differ_where_there_are_keys_and_only_there(self) -> None:
        assert self.hashes(key_form="bare") == self.hashes()
        assert self.hashes(key_form="bare", cache_salt="s")[0] != self.hashes(cache_salt="s")[0]
        # What made vLLM tag them: an adapter's name and a salt of the same letters.
        bare: dict[str, Any] = {"key_form": "bare"}
        assert self.hashes(extra_key="x", **bare)[0] == self.hashes(cache_salt="x", **bare)[0]
        assert self.hashes(extra_key="x", adapter_path="/a", **bare) == self.hashes(extra_key="x", **bare)

    def test_images_and_embeddings_are_told_by_their_type(self) -> None:
        keys = [DIGEST, IMAGE]
        assert self.hashes(extra_keys=[keys]) == self.hashes(extra_keys=[keys[::-1]])
        assert self.hashes(extra_keys=[("a", "b")], key_form="bare") != self.hashes(
            extra_keys=[("a",)], key_form="bare"
        )


class TestRefused:
    @pytest.mark.parametrize("scheme", ["vllm-xxhash", "vllm-xxhash-cbor", "vllm-builtin"])
    def test_a_scheme_without_a_fixed_seed_needs_one(self, scheme: HashScheme) -> None:
        with pytest.raises(ConfigError, match=f"{scheme} needs the engine's PYTHONHASHSEED"):
            block_hashes([1], 1, scheme=scheme)
        with pytest.raises(ConfigError, match=f"{scheme} needs the engine's PYTHONHASHSEED"):
            HashChain.root(1, scheme=scheme)

    @pytest.mark.parametrize("seed", ["random", "", "-1", "4294967296", "1.0"])
    def test_pythons_own_hash_needs_a_number(self, seed: str) -> None:
        with pytest.raises(ConfigError, match=r"needs a number from 0 to 2\^32-1, got"):
            block_digests([1], 1, scheme="vllm-builtin", hash_seed=seed)

    @pytest.mark.parametrize("scheme", ["sglang", "content"])
    @pytest.mark.parametrize(
        "setting",
        [
            {"hash_seed": "0"},
            {"key_form": "bare"},
            {"none_hash": 1},
            {"adapter_path": "/p"},
            {"lora_id": 1},
            {"extra_keys": [None]},
        ],
    )
    def test_settings_of_vllm_are_refused_elsewhere(self, scheme: HashScheme, setting: dict[str, Any]) -> None:
        (name,) = setting
        with pytest.raises(ConfigError, match=f"^{name}: only schemes of vLLM have"):
            block_hashes([1, 2], 1, scheme=scheme, **setting)

    def test_pairs_are_refused(self) -> None:
        with pytest.raises(ConfigError, match="vllm-sha256 has no pages of pairs"):
            block_hashes([1, 2], 1, scheme="vllm-sha256", bigram=True)

    def test_an_unknown_form_names_the_known_ones(self) -> None:
        with pytest.raises(ConfigError, match='key_form: expected one of tagged, bare, got "old"'):
            block_hashes([1], 1, scheme="vllm-sha256", key_form="old")  # type: ignore[arg-type]  # what is tested

    @pytest.mark.parametrize(
        "entry",
        [
            [["img"]],
            [["img", 0, 0]],
            [["img", "0"]],
            [["img", 2**63]],
            [[0, "img"]],
            [7],
            [None],
            [1.5],
            [{"img": 0}],
            [[["img", 0]]],
        ],
    )
    def test_what_is_no_key_is_refused_with_its_block(self, entry: Any) -> None:
        with pytest.raises(ValueError, match=r"extra_keys: expected \[image id, offset\], .* in block 1"):
            block_hashes([1, 2], 1, scheme="vllm-sha256", extra_keys=[None, entry])

    @pytest.mark.parametrize("keys", ["img", b"img", 7, {"img": 0}, {1, 2}])
    def test_what_is_no_sequence_is_refused(self, keys: Any) -> None:
        with pytest.raises(TypeError, match="extra_keys: expected a sequence"):
            block_hashes([1], 1, scheme="vllm-sha256", extra_keys=keys)
        with pytest.raises(TypeError, match="expected None or a sequence of keys for block 0"):
            block_hashes([1], 1, scheme="vllm-sha256", extra_keys=[keys])

    def test_an_id_alone_is_refused_where_images_are_tagged(self) -> None:
        with pytest.raises(ValueError, match=r"an id alone in block 0 .a salt goes into cache_salt"):
            block_hashes([1], 1, scheme="vllm-sha256", extra_keys=[["img"]])
        assert len(block_hashes([1], 1, scheme="vllm-sha256", extra_keys=[["img"]], key_form="bare")) == 1

    def test_more_entries_than_blocks_are_refused(self) -> None:
        # One may stand for the part of a block at the end.
        assert len(block_hashes([1, 2, 3], 2, scheme="vllm-sha256", extra_keys=[None, [IMAGE]])) == 1
        with pytest.raises(ValueError, match="expected an entry for each of 2 blocks at most, got 3"):
            block_hashes([1, 2, 3], 2, scheme="vllm-sha256", extra_keys=[None] * 3)

    @pytest.mark.parametrize(("scheme", "size"), [("sglang", 16), ("vllm-sha256", 31), ("vllm-xxhash", 32)])
    def test_a_digest_of_another_size_is_refused(self, scheme: HashScheme, size: int) -> None:
        seed: dict[str, Any] = {"hash_seed": "0"} if scheme.startswith("vllm") else {}
        with pytest.raises(ValueError, match=rf"parent_digest: expected \d+ bytes \({scheme}\), got {size}"):
            block_hashes([1], 1, scheme=scheme, parent_digest=bytes(size), **seed)
