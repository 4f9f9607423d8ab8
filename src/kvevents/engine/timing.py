"""How long a step of the simulated GPU takes."""

import msgspec

from kvevents.errors import ConfigError


class TimingModel(msgspec.Struct, frozen=True, kw_only=True):
    """Step time as a function of what the step computes.

    Attributes:
        prefill_tokens_per_second: prompt tokens computed per second.
        decode_step_ms: base time of a step in which at least one request decodes.
        decode_step_per_request_ms: what each decoding request adds to that.
        load_back_tokens_per_second: tokens whose KV is copied from host memory per second.
        storage_tokens_per_second: tokens whose KV is read from the tier below it per second.
    """

    prefill_tokens_per_second: float = 20_000.0
    decode_step_ms: float = 10.0
    decode_step_per_request_ms: float = 0.1
    load_back_tokens_per_second: float = 200_000.0
    storage_tokens_per_second: float = 50_000.0

    def __post_init__(self) -> None:
        for name in ("prefill", "load_back", "storage"):
            value = getattr(self, f"{name}_tokens_per_second")
            if not 0 < value < float("inf"):
                raise ConfigError(f"{name.replace('_', '-')} tokens per second: expected a number above 0, got {value}")
        for name in ("decode_step_ms", "decode_step_per_request_ms"):
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise ConfigError(f"{name}: expected milliseconds, 0 or more, got {value}")

    def step_s(self, *, prefill_tokens: int, decoding: int, loaded_tokens: int = 0, fetched_tokens: int = 0) -> float:
        """Seconds of a step.

        Args:
            prefill_tokens: prompt tokens that it computes.
            decoding: requests that it computes one token for.
            loaded_tokens: tokens that are copied from host memory before it.
            fetched_tokens: tokens that are read from a store before that.
        """
        seconds = prefill_tokens / self.prefill_tokens_per_second
        seconds += loaded_tokens / self.load_back_tokens_per_second + fetched_tokens / self.storage_tokens_per_second
        if decoding:
            seconds += (self.decode_step_ms + self.decode_step_per_request_ms * decoding) / 1000
        return seconds
