"""How workers are chosen."""

import msgspec

from kvevents.routing.policies import make_policy


class RoutingSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How workers are chosen.

    Attributes:
        policy: the policy to start with: kv, round_robin, random or least_loaded. `POST /policy` changes it.

    Raises:
        ConfigError: a policy that there is none of.
    """

    policy: str = "kv"

    def __post_init__(self) -> None:
        make_policy(self.policy)
