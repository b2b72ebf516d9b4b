"""`mainspring eval compare`: two stored evaluations, paired per task."""

import json
from typing import Annotated, Any

import typer

from cli.options import Home, Json, with_database

First = Annotated[str, typer.Argument(metavar="A", help="Name of an evaluation or regrade.")]
Second = Annotated[
    str, typer.Argument(metavar="B", help="Name of the one to compare with it: B less A.")
]


def compare(a: First, b: Second, home: Home = None, as_json: Json = False) -> None:
    """Compare two evaluations task by task: who solved what, and how sure the difference is.

    Only tasks of both count. Masked rollouts are left out.
    """
    from mainspring.rewards.paired import paired

    async def read(db: Any) -> Any:
        from infra.db.naming import campaign_named
        from infra.db.reading import evaluations

        records = [await campaign_named(db, name) for name in (a, b)]
        _check(records)
        async with db.snapshot() as connection:
            return records, [await evaluations.by_task(connection, each.id) for each in records]

    from cli.eval import compare_screen

    records, tallies = with_database(home, read)
    found = paired(*tallies)
    _check_common(records, found)
    if as_json:
        typer.echo(json.dumps(compare_screen.as_document(records, found)))
    else:
        compare_screen.print_comparison(records, found)


def _check(records: list[Any]) -> None:
    """Raises UsageError unless they are two runs that measure."""
    from mainspring.errors import UsageError
    from mainspring.status import CampaignKind

    for record in records:
        if record.kind not in (CampaignKind.EVAL, CampaignKind.REGRADE):
            raise UsageError(
                f"{record.id} is a run of the kind {record.kind}: only evaluations and regrades "
                "are compared",
                remedy="`mainspring campaign list` lists all runs with their kinds",
            )
    if records[0].id == records[1].id:
        raise UsageError(
            f"{records[0].id} is compared with itself", remedy="give the names of two evaluations"
        )


def _check_common(records: list[Any], found: Any) -> None:
    """Raises UsageError where no task can be paired."""
    from mainspring.errors import UsageError

    if found.pairs:
        return
    a, b = (record.id for record in records)
    if not found.unscored:
        raise UsageError(
            f"{a} and {b} have no task in common: {len(found.only_in_a)} are in {a} alone, "
            f"{len(found.only_in_b)} in {b} alone",
            remedy="compare evaluations of the same task set",
        )
    raise UsageError(
        f"{a} and {b} have {len(found.unscored)} tasks in common, and none with a scored rollout "
        f"in both: {a} has {found.a.num_masked} masked and {found.a.num_unfinished} unfinished "
        f"rollouts, {b} {found.b.num_masked} and {found.b.num_unfinished}",
        remedy=f"`mainspring rollout list {a} --masked` names the faults",
    )
