"""Which model a name means, and which adapter."""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple


class Identity(NamedTuple):
    """What a request's names come to.

    Attributes:
        model: the model that a worker must serve; None where the request names none.
        base: the model whose tokenizer and template are used.
        lora_name: the adapter.
    """

    model: str | None
    base: str | None
    lora_name: str | None


class Identities:
    """Reads names as the engines do: vLLM serves an adapter as a model, SGLang takes `model:adapter` and `lora_path`.

    Args:
        configured: adapters by name, with the model of each.
        served: names of the models that each worker serves.
        base_of: the model of an adapter that workers list as a model of its own.
    """

    def __init__(
        self,
        configured: Mapping[str, str],
        *,
        served: Callable[[], Iterable[Collection[str]]],
        base_of: Callable[[str], str | None],
    ) -> None:
        self._configured = configured
        self._served = served
        self._base_of = base_of

    def of(self, model: str | None, lora_name: str | None) -> Identity:
        """The identity of what a request names."""
        if model is not None:
            base = self._configured.get(model) or self._base_of(model)
            if base is not None:
                return Identity(model, base, lora_name or model)
            if self._is_served(model):
                return Identity(model, model, lora_name)
            name, _, adapter = model.rpartition(":")
            if adapter and self._is_served(name):
                return Identity(name, name, lora_name or adapter)
        served: frozenset[str] = frozenset().union(*self._served())
        base = next(iter(served)) if len(served) == 1 else model  # the one that can be meant
        return Identity(model, base, lora_name)

    def _is_served(self, model: str) -> bool:
        for served in self._served():  # noqa: SIM110 - asked for every request, and a generator costs as much again
            if model in served:
                return True
        return False
