"""Changes of a campaign: which fields have them, and the configuration that each step has."""

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given as hypothesis_given
from hypothesis import settings
from hypothesis import strategies as st
from pydantic import BaseModel

from mainspring.config.campaign import CampaignConfig
from mainspring.config.files.changes import (
    ALWAYS,
    FieldChange,
    at_step,
    counts_of,
    differences,
    given,
    latest,
    refuse_fixed,
    unchanged,
)
from mainspring.config.files.forks import forked, inherited
from mainspring.config.files.layers import assignments
from mainspring.config.section import Counts
from mainspring.errors import ConfigError, UsageError

WHEN = datetime(2026, 1, 1, tzinfo=UTC)


def campaign(**fields: Any) -> CampaignConfig:
    raw = {"name": "c", "trainer": {"device": "cpu", "warm_start": {}, "num_steps": 6}}
    return CampaignConfig.model_validate(raw | fields)


def change(number: int, field: str, after: Any, from_step: int) -> FieldChange:
    return FieldChange(number, field, None, after, from_step, "someone", WHEN)


@pytest.mark.parametrize(
    ("field", "counts"),
    [
        ("trainer.num_steps", Counts.STEPS),
        ("trainer.optimizer.lr", Counts.STEPS),
        ("trainer.clip_high", Counts.STEPS),
        ("trainer.max_staleness", Counts.STEPS),
        ("trainer.groups_per_step", Counts.STEPS),
        ("trainer.gap.max", Counts.STEPS),
        ("trainer.quorum", Counts.ROLLOUTS),
        ("sandbox.max_open", Counts.ROLLOUTS),
        ("sandbox.memory_mb", Counts.ROLLOUTS),
        ("agent.command_timeout_s", Counts.ROLLOUTS),
        ("agents.second.rollout_timeout_s", Counts.ROLLOUTS),
        ("curriculum.low", Counts.ROLLOUTS),
        ("policy.engines", Counts.AT_ONCE),
        ("judges.useful.url", Counts.AT_ONCE),
        ("tracking.mlflow.uri", Counts.AT_ONCE),
        ("evaluation.every_steps", Counts.AT_ONCE),
        ('prices."gpt-4.1".input', Counts.ROLLOUTS),
        ("trainer.keep_checkpoints", Counts.AT_ONCE),
    ],
)
def test_what_a_campaign_runs_with_may_change(field: str, counts: Counts) -> None:
    assert counts_of(field) is counts


@pytest.mark.parametrize(
    "field",
    [
        *("name", "seed", "schedule", "policy.model", "policy.publish", "policy.temperature"),
        *("tasks.source", "agent.kind", "agents.second.kind", "trainer.group_size"),
        *("trainer.lora.rank", "trainer.optimizer.name", "trainer.warm_start.lr", "trainer.loss"),
        *("reward.parts", "judges.useful.votes", "evaluation.splits", "no.such.field", "trainer"),
    ],
)
def test_what_a_campaign_is_never_changes(field: str) -> None:
    assert counts_of(field) is None
    with pytest.raises(UsageError, match=field):
        refuse_fixed(campaign(), [field])


def test_a_reproducible_campaign_keeps_what_numbers_its_groups() -> None:
    fixed = campaign(schedule="reproducible")
    for field in ("trainer.groups_per_step", "trainer.max_staleness"):
        refuse_fixed(campaign(), [field])
        with pytest.raises(UsageError, match="is reproducible"):
            refuse_fixed(fixed, ["trainer.num_steps", field])


RATES = st.sampled_from([1e-3, 1e-4, 1e-5])
CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["trainer.optimizer.lr", "trainer.optimizer.muon_lr"]),
        RATES,
        st.integers(0, 8),
    ),
    max_size=8,
)


@settings(deadline=None)  # a busy machine takes longer for the same work
@hypothesis_given(CHANGES, st.integers(1, 9))
def test_a_step_has_the_newest_of_the_changes_that_count(
    made: list[tuple[str, float, int]], step: int
) -> None:
    base = campaign()
    changes = [change(n + 1, *each) for n, each in enumerate(made)]
    expected = {
        "trainer.optimizer.lr": base.trainer.optimizer.lr,
        "trainer.optimizer.muon_lr": base.trainer.optimizer.muon_lr,
    }
    for since in range(step + 1):
        expected |= {field: rate for field, rate, from_step in made if from_step == since}
    found = at_step(base, changes, step).trainer.optimizer
    assert (found.lr, found.muon_lr) == tuple(expected.values())
    assert at_step(base, [*reversed(changes)], step).trainer.optimizer == found


def test_a_file_that_was_not_touched_takes_no_change_back() -> None:
    base = campaign()
    changes = [
        change(1, "trainer.optimizer.lr", 1e-4, 2),
        change(2, "trainer.num_steps", 9, 3),
        change(3, "trainer.optimizer.lr", 1e-5, 4),
    ]
    as_changed = at_step(base, changes, 4)
    assert unchanged(base, changes, base) == as_changed
    other = campaign(trainer=base.trainer.model_dump() | {"num_steps": 12})
    wanted = unchanged(base, changes, other)
    assert differences(as_changed, wanted) == {"trainer.num_steps": (9, 12)}


def test_names_with_dots_stay_whole() -> None:
    base = campaign(prices={"bundled": {"input": 1, "output": 2}})
    agents = {"a.b": {"kind": "bash"}, 'quo"te': {"kind": "bash"}}
    base = base.model_copy(update={"agents": campaign(agents=agents).agents})
    for name in agents:
        [(field, (before, after))] = differences(
            base, given(base, [(("agents", name, "command_timeout_s"), 5.0)])
        ).items()
        assert counts_of(field) is Counts.ROLLOUTS
        changed = at_step(base, [FieldChange(1, field, before, after, 1, "", WHEN)], 1)
        assert changed.agents[name].command_timeout_s == 5.0
        assert changed.agents.keys() == agents.keys()


def test_values_are_those_of_toml_and_unset_is_none() -> None:
    found = assignments(["trainer.quorum=unset", "a.b=[1, 2]", "c = word", "trainer.lr=5e-7"])
    assert found == [
        (("trainer", "quorum"), None),
        (("a", "b"), [1, 2]),
        (("c",), "word"),
        (("trainer", "lr"), 5e-7),
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("trainer.num_stpes=4", "did you mean num_steps"),
        ("trainer.num_steps=four", "must be a whole number"),
        ("trainer.num_steps=0", "must be at least 1"),
        ("trainer.num_steps=true", "must be a number"),
        ("trainer.num_steps=unset", "must be a whole number"),
        ("trainer.quorum=8", "is not below group_size"),
        ("policy.engines.4=http://h:1", "has 1 entry"),
        ("policy.engines=http://h:1", "must be a list"),
        ("nonsense", "has no value"),
        ("a..b=1", "names no field"),
        ("judges.none.url=http://h:1", "judges.none"),
    ],
)
def test_a_value_that_cannot_be_is_named(text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        given(campaign(), assignments([text]))


def test_a_fork_runs_with_what_it_is_given_whatever_its_parent_changed() -> None:
    parent = campaign()
    before = parent.trainer.optimizer.lr
    changes = [
        change(1, "trainer.optimizer.lr", 1e-4, 2),
        change(2, "trainer.optimizer.lr", 1e-5, 9),
        change(3, "trainer.num_steps", 12, 3),
    ]
    texts = [f"trainer.optimizer.lr={before}", "evaluation.concurrency=5", "trainer.loss=cispo"]
    config, fields = forked(parent, at_step(parent, changes, 5), "f", assignments(texts))
    assert fields == {"trainer.optimizer.lr": (1e-4, before)}
    assert (config.name, config.evaluation.concurrency, config.trainer.loss) == ("f", 5, "cispo")
    kept = inherited(changes, 4, fields)
    assert [each.number for each in kept] == [1, 3]
    made = [*kept, change(4, "trainer.optimizer.lr", before, 5)]
    assert at_step(config, made, 4).trainer.optimizer.lr == 1e-4
    ends = latest(config, made).trainer
    assert (ends.optimizer.lr, ends.num_steps) == (before, 12)


def test_what_is_refused_since_a_campaign_was_stored_spares_it() -> None:
    stored = campaign()
    trainer = stored.trainer.model_copy(update={"straggler_s": 1e9})  # no bound, at that time
    stored = stored.model_copy(update={"trainer": trainer})
    changed = given(stored, assignments(["trainer.optimizer.lr=1e-5"]))
    assert (changed.trainer.straggler_s, changed.trainer.optimizer.lr) == (1e9, 1e-5)
    with pytest.raises(ConfigError, match="must be greater than 0"):
        given(stored, assignments(["trainer.optimizer.lr=0"]))


def test_every_mark_stands_where_it_counts() -> None:
    """A mark below a section that has one would never be read."""

    def walk(model: type[BaseModel], path: str) -> None:
        for name, field in model.model_fields.items():
            marks = [mark for mark in field.metadata if isinstance(mark, Counts)]
            assert len(marks) <= 1, f"{path}{name}"
            inner = field.annotation
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                if marks:
                    assert not _marked(inner), f"{path}{name} has marks inside"
                else:
                    walk(inner, f"{path}{name}.")

    walk(CampaignConfig, "")
    assert ALWAYS == 0


def _marked(model: type[BaseModel]) -> bool:
    return any(
        isinstance(mark, Counts) for field in model.model_fields.values() for mark in field.metadata
    )
