"""The parts that a configuration names: agent, environments, reward, judges, sandbox backend,
algorithms, trackers.

Invariant: a name or a path that cannot be used is refused before anything is stored or started,
with the list of what exists. Used before a run is stored, and by the checklist.
"""

from collections.abc import Callable, Iterator

from infra.harbor.checking import check_harbor
from infra.judges.judge import JUDGES
from infra.sandbox.backends import BACKENDS
from infra.tracking.choice import check_tracking
from mainspring.agents.choice import check_agents, naming
from mainspring.algorithms.choice import check_algorithms
from mainspring.config.any_run import AnyRun
from mainspring.config.campaign import CampaignConfig
from mainspring.config.run import RunConfig
from mainspring.config.sft import SftConfig
from mainspring.curricula.choice import CURRICULA
from mainspring.environments.choice import check_environments
from mainspring.errors import UsageError
from mainspring.rewards.judges import check_judges
from mainspring.rewards.scoring import check_parts


def check_named(config: AnyRun) -> None:
    """Raises UsageError for the first that cannot be used."""
    for _, check in _checks(config):
        check()


def unusable(config: AnyRun) -> list[tuple[str, UsageError]]:
    """Everything that cannot be used, with the part it is."""
    errors: list[tuple[str, UsageError]] = []
    for what, check in _checks(config):
        try:
            check()
        except UsageError as error:
            errors.append((what, error))
    return errors


def _checks(config: AnyRun) -> Iterator[tuple[str, Callable[[], None]]]:
    if isinstance(config, SftConfig):
        yield "algorithm", lambda: check_algorithms(config.ranks.trainer)
        yield "tracker", lambda: check_tracking(config.tracking)
        return
    yield "reward", lambda: check_parts(config)
    for judge in config.judges.values():
        yield "judge", lambda kind=judge.kind: JUDGES.check(kind)
    yield "judge", lambda: check_judges(config)
    yield "agent", lambda: _check_agents(config)
    yield "environment", lambda: check_environments(config)
    if (backend := config.sandbox.backend) is not None:
        yield "sandbox backend", lambda: BACKENDS.check(backend)
    if isinstance(config, CampaignConfig):
        yield "algorithm", lambda: check_algorithms(config.trainer)
        yield "curriculum", lambda: CURRICULA.check(config.curriculum.kind)
        yield "tracker", lambda: check_tracking(config.tracking)


def _check_agents(config: RunConfig) -> None:
    check_agents(config)
    for section, agent in config.agent_sections.items():
        with naming(section):
            check_harbor(agent)
