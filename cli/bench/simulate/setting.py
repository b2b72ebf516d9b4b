"""One setting of the simulation: a campaign, its trainer's speed, its machines, and what a loss
does. Pure; every constant is in seconds and is the same in all settings."""

from dataclasses import asdict, dataclass
from enum import StrEnum

from cli.bench.simulate.trace import MAX_TURNS
from mainspring.config.agents.agent import AgentConfig
from mainspring.config.campaign import CampaignConfig
from mainspring.config.evaluations.evaluation import EvalSchedule
from mainspring.config.policy import PolicyConfig
from mainspring.config.tasks import TasksConfig
from mainspring.config.trainer import TrainerConfig
from mainspring.protocol.timeouts import DEAD_NODE_TIMEOUT_S, HEARTBEAT_TIMEOUT_S
from mainspring.status import Unverified

OPEN_S = 10.0
"""A sandbox opens, with its image on the node."""
GRADE_S = 60.0
"""Hidden tests in a fresh sandbox, whose machine does not die."""
PUBLISH_S = 10.0
"""A policy version is loaded into the engines, which serve the one before until then."""
NOTICED_S = HEARTBEAT_TIMEOUT_S + DEAD_NODE_TIMEOUT_S
"""After a machine's death: heartbeats stop, and nothing takes the next attempt."""
NO_DEADLINE_S = 30 * 24 * 3600.0
SOURCE = "simulated"


SLICE_TURNS = 4
"""Turns of one activity where a group has a quorum: between two of them a rollout is told."""


class OnLoss(StrEnum):
    """Treatment of a rollout whose machine dies."""

    RESUME = "resume"
    """A new sandbox, its commands replayed, the next turn: what Mainspring does."""
    RESTART = "restart"
    """A new sandbox, and another try from the first turn."""
    MASK = "mask"
    """The rollout is masked; its group is replaced where too few are scored."""


@dataclass(frozen=True, slots=True)
class Setting:
    num_steps: int = 12
    groups_per_step: int = 4
    group_size: int = 8
    train_s: float = 1800.0
    max_staleness: int = 1
    lifetime_s: float | None = None
    """Mean of a machine's exponential lifetime; None: machines do not die."""
    on_loss: OnLoss = OnLoss.RESUME
    deadline_s: float | None = None
    """Time limit of a rollout's turns; then it is graded as it is (`agent.rollout_timeout_s`)."""
    quorum: int | None = None
    """Scored rollouts of a group after which its others have `straggler_s` left
    (`trainer.quorum`); None: it waits for all. Machines then do not die."""
    straggler_s: float = 600.0
    seed: int = 0

    def config(self, name: str) -> CampaignConfig:
        return CampaignConfig(
            name=name,
            seed=self.seed,
            tasks=TasksConfig(source=SOURCE, unverified=Unverified.USE),
            agent=AgentConfig(
                step_limit=MAX_TURNS, rollout_timeout_s=self.deadline_s or NO_DEADLINE_S
            ),
            policy=PolicyConfig(model="none"),
            trainer=TrainerConfig(
                num_steps=self.num_steps,
                groups_per_step=self.groups_per_step,
                group_size=self.group_size,
                max_staleness=self.max_staleness,
                quorum=self.quorum,
                straggler_s=self.straggler_s,
                # Time is measured, not learning: no group is replaced for its rewards.
                filter="none",
            ),
            evaluation=EvalSchedule(splits=(), greedy=False),
        )

    @property
    def slice_turns(self) -> int | None:
        """Turns of one activity; None: a whole life."""
        return None if self.quorum is None else SLICE_TURNS

    def as_dict(self) -> dict[str, object]:
        return asdict(self)
