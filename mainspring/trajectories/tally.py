"""The tally of a rollout's turns: how many were played, what they took, and what ends them.

Invariants: pure; a tally follows from what its turns returned, in their order, and from its limits
alone, so the workflow that counts turn by turn and the activity that plays several of them decide
alike. A tally that has a `stop` is not changed any more. A payload: only optional fields may be
added. Imported by the payloads and the workflow of a rollout, and by the activity of several turns.
"""

from pydantic import BaseModel

from mainspring.status import StopReason


class TurnLimits(BaseModel):
    """Limits that end a rollout which its agent does not end."""

    step_limit: int
    """Turns."""
    max_format_errors: int
    """In a row."""
    rollout_timeout_s: float
    """Time of replies and commands together. Waiting for engines, nodes, retries or Temporal is no
    fault of the agent, and is bounded elsewhere."""
    cost_limit: float | None = None
    """Dollars of the calls. None: no limit."""
    straggler_at_s: float | None = None
    """From here on it is a straggler: most of its group has ended. None: not so."""


class Tally(BaseModel):
    limits: TurnLimits
    num_turns: int = 0
    """Replies that were given."""
    spent_s: float = 0.0
    cost: float = 0.0
    """Dollars of the calls up to now."""
    num_format_errors: int = 0
    """In a row, up to now."""
    stop: StopReason | None = None
    """Why no turn follows."""

    def context_is_full(self) -> None:
        """Instead of a reply."""
        self.stop = StopReason.CONTEXT_FULL

    def replied(self, spent_s: float, *, in_format: bool, cost: float = 0.0) -> None:
        self.num_turns += 1
        self.cost += cost
        self.spent_s += spent_s
        self.num_format_errors = 0 if in_format else self.num_format_errors + 1
        if self.num_format_errors == self.limits.max_format_errors:
            self.stop = StopReason.FORMAT_ERRORS

    def ran(self, spent_s: float, *, submitted: bool) -> None:
        """One command."""
        self.spent_s += spent_s
        if submitted:
            self.stop = StopReason.SUBMITTED

    def end_turn(self) -> None:
        """After the turn's last command, or after a reply without commands."""
        if self.stop is not None:
            return
        late_s, most = self.limits.straggler_at_s, self.limits.cost_limit
        if self.spent_s > self.limits.rollout_timeout_s:
            self.stop = StopReason.WALL_TIME
        elif late_s is not None and self.spent_s >= late_s:
            self.stop = StopReason.STRAGGLER
        elif most is not None and self.cost >= most:
            self.stop = StopReason.COST_LIMIT
        elif self.num_turns >= self.limits.step_limit:
            self.stop = StopReason.STEP_LIMIT
