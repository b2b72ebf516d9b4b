"""Which processes are asked for an extension: those that docs/extending.md lists."""

from pathlib import Path

from mainspring.config.agents.agent import AgentConfig
from mainspring.config.campaign import CampaignConfig
from mainspring.extensions import POINTS, ProcessRole, extensions_of

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "extending.md"
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
        "agent": {
            "kind": "own:Agent",
            "tool_parser": "own:parse",
            "tools": ["bash", "own:Tool"],
            "context": {"kind": "own:Context"},
        },
        "agents": {"second": {"kind": "own:Second", "tool_parser": "own:parse"}},
        "reward": {"parts": [{"name": "outcome"}, {"name": "own:reward"}]},
        "judges": {"own": {"kind": "own:Judge"}},
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


def table() -> dict[str, list[str]]:
    """The page's cells by extension point."""
    found = {}
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| a") and len(cells) == 4:
            what = cells[0].partition(" ")[2]
            found[ROWS.get(what, what)] = cells
    return found


def test_the_processes_asked_are_those_of_the_page() -> None:
    asked: dict[str, set[ProcessRole]] = {}
    for role in ProcessRole:
        for config in (CONFIG, PLAYED, BY_HARBOR):
            for extension in extensions_of(config, role):
                asked.setdefault(extension.what, set()).add(role)
    listed = {
        what: {role for role in ProcessRole if WORDS[role] in cells[3]}
        for what, cells in table().items()
    }
    assert listed.pop(IN_COMMANDS_ONLY) == set()
    assert asked == listed


def test_functions_of_sections_are_asked_for_where_their_kind_is_that_of_a_function() -> None:
    agents = {
        "one": AgentConfig(kind="function", options={"function": "own:first"}),
        "two": AgentConfig(kind="command", options={"command": "x", "function": "own:no"}),
    }
    config = CONFIG.model_copy(update={"agents": agents})
    found = [each.path for each in extensions_of(config, ProcessRole.NODE)]
    assert "own:first" in found and "own:no" not in found


def test_the_page_has_every_point_that_is_open() -> None:
    rows, points = table(), {point.what: point for point in POINTS if point.is_open}
    assert rows.keys() == points.keys()
    for what, point in points.items():
        for word in (point.field or "tasks import").split(".")[-2:]:
            assert word in rows[what][2], what
    for point in POINTS:
        assert (ROOT / point.protocol).is_file(), point.what


def test_what_mainspring_brings_is_left_out() -> None:
    plain = CampaignConfig.model_validate({"name": "plain", "trainer": {"warm_start": {}}})
    assert not any(extensions_of(plain, role) for role in ProcessRole)
