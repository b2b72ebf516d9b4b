"""Commands agree on the split that is meant: the only one, or the one that is given."""

import pytest

from bundled.gold import make_gold_tasks
from cli.operations.checks.split_choice import chosen_split
from infra.db.database import Database
from infra.db.tasks import tasks
from mainspring.errors import UsageError

ONE, TWO = "one-split", "two-splits"


async def test_the_only_split_is_meant_and_several_are_listed(db: Database) -> None:
    await tasks.put_tasks(db, make_gold_tasks(1, ONE, 2))
    made = make_gold_tasks(2, TWO, 3)
    test = [task.model_copy(update={"split": "test"}) for task in made[1:]]
    await tasks.put_tasks(db, [made[0], *test])

    [only] = {task.split for task in make_gold_tasks(1, ONE, 2)}
    assert await chosen_split(db, ONE, None) == only
    assert await chosen_split(db, TWO, "test") == "test"
    with pytest.raises(UsageError, match=rf"several splits: test 2, {only} 1") as several:
        await chosen_split(db, TWO, None)
    assert "--split" in several.value.remedy
    with pytest.raises(UsageError, match="no tasks in split 'dev'; splits: test 2"):
        await chosen_split(db, TWO, "dev")
    with pytest.raises(UsageError, match=f"'nowhere' are stored; stored sources: .*{ONE}"):
        await chosen_split(db, "nowhere", None)
    with pytest.raises(UsageError, match="train, heldout, heldout_templates"):
        await chosen_split(db, "bundled", None)
