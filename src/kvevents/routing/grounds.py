"""What a choice went by, put into words when somebody asks."""

from collections.abc import Mapping, Sequence

from kvevents._core.routing import Judgement
from kvevents.routing.decision import Score
from kvevents.routing.policies import Policy


class Grounds:
    """The candidates of one choice.

    Args:
        judgement: their figures.
        place: which one was chosen.
        policy: by which.
        scores: of all of them, the chosen one first, then by cost; None: as the judgement has them.
        why: what the choice went by besides the cost.
    """

    __slots__ = ("_judgement", "_place", "_policy", "_scores", "_why")

    def __init__(
        self,
        judgement: Judgement,
        place: int,
        policy: Policy,
        *,
        scores: Sequence[Score] | None = None,
        why: str | None = None,
    ) -> None:
        self._judgement = judgement
        self._place = place
        self._policy = policy
        self._scores = scores
        self._why = why

    @property
    def chosen(self) -> Score:
        """The candidate that was chosen."""
        return Score(*self._judgement.score(self._place)) if self._scores is None else self._scores[0]

    @property
    def scores(self) -> Sequence[Score]:
        """One per candidate, the chosen one first, then by cost."""
        if self._scores is None:
            places = self._judgement.ranking()
            places.remove(self._place)
            self._scores = [Score(*self._judgement.score(place)) for place in (self._place, *places)]
        return self._scores

    @property
    def reason(self) -> str:
        """One sentence for people."""
        chosen, *others = self.scores
        reason = self._policy.reason(chosen, others)
        return reason if self._why is None else f"{self._why}; {reason}"

    @property
    def weights(self) -> Mapping[str, float]:
        """What one unit of a figure of the scores adds to their cost, by the figure's name."""
        return self._policy.weights
