"""Which worker gets a request: policies, load, and the fleet they choose from."""

from kvevents.routing.decision import Decision, Score
from kvevents.routing.kv import KvPolicy
from kvevents.routing.policies import POLICIES, LeastLoadedPolicy, Policy, RandomPolicy, RoundRobinPolicy, make_policy
from kvevents.routing.router import NoWorkerError, PrefixMatcher, Router

__all__ = [
    "POLICIES",
    "Decision",
    "KvPolicy",
    "LeastLoadedPolicy",
    "NoWorkerError",
    "Policy",
    "PrefixMatcher",
    "RandomPolicy",
    "RoundRobinPolicy",
    "Router",
    "Score",
    "make_policy",
]
