"""`mainspring campaign fingerprint`: the digests of a campaign, compared with those of another."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from cli.options import CampaignName, Home, Json, with_database
from cli.terminal_text import echo


def fingerprint(
    name: CampaignName,
    calls: Annotated[
        bool, typer.Option("--calls", help="Include the SHA-256 of each call of each batch.")
    ] = False,
    against: Annotated[
        Path | None,
        typer.Option(
            help="File with another fingerprint (--json) to compare with. Exit code 4 if they "
            "differ."
        ),
    ] = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Show the SHA-256 of a reproducible campaign's weights, batches and gradients.

    To find the first call in which two campaigns differ, write both with --calls.
    """
    from infra.db.naming import campaign_named
    from infra.db.reading import fingerprints

    other = None if against is None else _read(against)
    with_calls = calls or bool(other and any(step.calls for step in other.steps))

    async def go(db: Any) -> Any:
        return await fingerprints.read(db, await campaign_named(db, name), with_calls=with_calls)

    stored = with_database(home, go)
    if as_json:
        echo(stored.model_dump_json())
    else:
        _print(stored)
    if other is not None:
        _compare(stored, other, against, quiet=as_json)


def _read(file: Path) -> Any:
    from pydantic import ValidationError

    from mainspring.artifacts.reproducibility import CampaignFingerprint
    from mainspring.errors import UsageError

    try:
        return CampaignFingerprint.model_validate_json(file.read_text())
    except (OSError, ValidationError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{file} is not a fingerprint: {str(error).splitlines()[0]}",
            remedy=f"write one: mainspring campaign fingerprint NAME --calls --json > {file}",
        ) from None


def _compare(stored: Any, other: Any, against: Path | None, *, quiet: bool) -> None:
    from mainspring.errors import WorkFailed

    difference = stored.difference(other)
    if difference is not None:
        raise WorkFailed(
            f"campaigns {stored.campaign} and {other.campaign} differ: {difference}",
            remedy="if the calls are not named, write both fingerprints with --calls",
        )
    if not quiet:
        number = len({step.step for step in stored.steps} & {step.step for step in other.steps})
        echo(f"equal to {against} in {number} steps")


def _print(stored: Any) -> None:
    from cli.tables import Screen, Table

    console = Screen()
    console.print(f"campaign {stored.campaign}", soft_wrap=True)
    console.print(f"weights  {stored.weights or 'not recorded'}", soft_wrap=True)
    table = Table()
    table.add_column("step", justify="right")
    for part in ("batch", "gradient", "weights"):
        table.add_column(part)
    for step in stored.steps:
        digests = (step.batch, step.gradient, step.weights)
        table.add_row(str(step.step), *(digest[:16] if digest else "-" for digest in digests))
    console.print(table)
    for change in stored.changes:
        value = f"{change.field} = {json.dumps(change.value)}"
        console.print(f"from step {change.from_step}: {value}", soft_wrap=True)
    if (first := stored.not_reproducible_from) is None:
        console.print("No step depends on time, faults or a person.")
        return
    console.print(
        f"From step {first} on it need not come out the same a second time:",
        style="yellow",
    )
    for deviation in stored.deviations:
        where = deviation.rollout or deviation.group
        console.print(f"  step {deviation.step}  {deviation.cause.value}  {where}", soft_wrap=True)
