"""Which processes are asked for an extension: those that docs/extending.md lists."""

from pathlib import Path

from mainspring.config.agent import AgentConfig
from mainspring.config.campaign import CampaignConfig
from mainspring.extensions import ProcessRole, extensions_of

PAGE = Path(__file__).parents[2] / "docs" / "extending.md"
IN_COMMANDS_ONLY = "task source"
WORDS = {
    ProcessRole.ROLLOUT_WORKER: "rollout workers",
    ProcessRole.NODE: "sandbox nodes",
    ProcessRole.TRAINER: "trainer",
}
ROWS = {"group filter": "filter", "step engine": "engine", "program in Python": "function"}
"""Where the page's word is longer than the message's."""
CONFIG = CampaignConfig.model_validate(
    {
        "name": "own",
        "agent": {"kind": "own:Agent"},
        "reward": {"parts": [{"name": "outcome"}, {"name": "own:reward"}]},
        "environments": {"game": "own:Environment"},
        "sandbox": {"backend": "own:Backend"},
        "curriculum": {"kind": "own:curriculum"},
        "trainer": {
            "device": "cpu",
            "advantage": "own:advantage",
            "filter": "own:filter",
            "loss": "own:loss",
            "proximal": "recomputed",
            "correction": {"kind": "own:correction"},
            "engine": "own:Engine",
            "warm_start": {},
        },
    }
)

PLAYED = CONFIG.model_copy(
    update={"agent": AgentConfig(kind="function", options={"function": "own:function"})}
)
BY_HARBOR = CONFIG.model_copy(
    update={"agent": AgentConfig(kind="harbor", options={"agent": "own:Agent"})}
)


def documented() -> dict[str, set[ProcessRole]]:
    """By extension point, the roles in the table's last column."""
    found = {}
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| a") and len(cells) == 4:
            what = cells[0].partition(" ")[2]
            found[ROWS.get(what, what)] = {role for role in ProcessRole if WORDS[role] in cells[3]}
    return found


def test_the_processes_asked_are_those_of_the_page() -> None:
    asked: dict[str, set[ProcessRole]] = {}
    for role in ProcessRole:
        for config in (CONFIG, PLAYED, BY_HARBOR):
            for extension in extensions_of(config, role):
                asked.setdefault(extension.what, set()).add(role)
    listed = documented()
    assert listed.pop(IN_COMMANDS_ONLY) == set()
    assert asked == listed


def test_what_mainspring_brings_is_left_out() -> None:
    plain = CampaignConfig.model_validate({"name": "plain", "trainer": {"warm_start": {}}})
    assert not any(extensions_of(plain, role) for role in ProcessRole)
