"""Which worker gets a request: policies, load, and the fleet they choose from."""

from kvevents.routing.approx import LearnedIndex
from kvevents.routing.decision import Decision, Score
from kvevents.routing.kv import KvPolicy
from kvevents.routing.load import Load, Reported
from kvevents.routing.matching import PrefixMatcher
from kvevents.routing.policies import POLICIES, LeastLoadedPolicy, Policy, RandomPolicy, RoundRobinPolicy, make_policy
from kvevents.routing.registry import Role
from kvevents.routing.router import NoWorkerError, Router
from kvevents.routing.settings import RoutingSettings

__all__ = [
    "POLICIES",
    "Decision",
    "KvPolicy",
    "LearnedIndex",
    "LeastLoadedPolicy",
    "Load",
    "NoWorkerError",
    "Policy",
    "PrefixMatcher",
    "RandomPolicy",
    "Reported",
    "Role",
    "RoundRobinPolicy",
    "Router",
    "RoutingSettings",
    "Score",
    "make_policy",
]
