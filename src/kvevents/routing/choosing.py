"""Which of the ranked candidates is taken: the cheapest, unless a session or a temperature says otherwise."""

import itertools
import math
import random
from collections.abc import Sequence
from typing import NamedTuple

from kvevents.routing.decision import Score, SessionChoice
from kvevents.routing.sessions import Sessions
from kvevents.routing.settings import RoutingSettings


class Choice(NamedTuple):
    """One of the candidates."""

    place: int
    """Where it stands among them."""
    session: SessionChoice
    """What the request's session did."""
    why: str | None
    """Why it is not the cheapest; None where it is."""


class Chooser:
    """Not thread-safe.

    Args:
        settings: temperature and sessions.
    """

    def __init__(self, settings: RoutingSettings) -> None:
        self._temperature = settings.temperature
        self._patience_tokens = settings.session_patience_tokens
        self._random = random.Random(settings.seed)  # noqa: S311 - spreads load, guards nothing
        self._sessions = (
            Sessions(ttl_s=settings.session_ttl_s, limit=settings.max_sessions) if settings.session_affinity else None
        )

    def takes_cheapest(self, session: str | None) -> bool:
        """Whether there is nothing to choose: it is the cheapest, whoever that is."""
        return not self._temperature and (session is None or self._sessions is None)

    def choose(
        self, ranked: Sequence[Score], *, prompt_tokens: int, session: str | None, now: float, dry_run: bool
    ) -> Choice:
        """Choose one of the candidates, which come by rising cost, and keep the session there.

        Args:
            ranked: at least one.
            prompt_tokens: length of the prompt.
            session: what ties requests together; None where nothing does.
            now: the router's clock, in seconds.
            dry_run: leave the session where it is.
        """
        if session is None or self._sessions is None:
            return self._draw(ranked, prompt_tokens, "none")
        before = self._sessions.find(session, now)
        choice = self._return(ranked, before)
        if choice is None:
            choice = self._draw(ranked, prompt_tokens, "new" if before is None else "moved")
        if dry_run:
            return choice
        chosen = ranked[choice.place]
        self._sessions.keep(session, (chosen.worker, chosen.dp_rank), now)
        return choice

    def _return(self, ranked: Sequence[Score], before: tuple[str, int] | None) -> Choice | None:
        """The session's candidate; None where it has none, or where too much waits there."""
        for place, score in enumerate(ranked):
            if (score.worker, score.dp_rank) == before:
                least = min(other.queued for other in ranked)
                if score.queued - least > self._patience_tokens:
                    return None
                return Choice(place, "kept", "its session is there" if place else None)
        return None

    def _draw(self, ranked: Sequence[Score], prompt_tokens: int, session: SessionChoice) -> Choice:
        """The cheapest; at a temperature, any of them, the cheaper the likelier."""
        if not self._temperature or len(ranked) == 1:
            return Choice(0, session, None)
        scale = self._temperature * max(1, prompt_tokens)
        least = ranked[0].cost
        odds = list(itertools.accumulate(math.exp((least - score.cost) / scale) for score in ranked))
        drawn = self._random.random() * odds[-1]
        place = next(place for place, bound in enumerate(odds) if drawn < bound)
        return Choice(place, session, f"drawn at temperature {self._temperature:g}" if place else None)
