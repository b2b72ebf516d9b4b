"""`mainspring campaign fingerprint`: the digests of a campaign, compared with those of another."""

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

    found = with_database(home, go)
    if as_json:
        echo(found.model_dump_json())
    else:
        _print(found)
    if other is not None:
        _compare(found, other, against, quiet=as_json)


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


def _compare(found: Any, other: Any, against: Path | None, *, quiet: bool) -> None:
    from mainspring.errors import WorkFailed

    difference = found.difference(other)
    if difference is not None:
        raise WorkFailed(
            f"campaigns {found.campaign} and {other.campaign} differ: {difference}",
            remedy="if the calls are not named, write both fingerprints with --calls",
        )
    if not quiet:
        number = min(len(found.steps), len(other.steps))
        echo(f"equal to {against} in {number} steps")


def _print(found: Any) -> None:
    from cli.tables import Screen, Table

    console = Screen()
    console.print(f"campaign {found.campaign}", soft_wrap=True)
    console.print(f"weights  {found.weights or 'not recorded'}", soft_wrap=True)
    table = Table()
    table.add_column("step", justify="right")
    for part in ("batch", "gradient", "weights"):
        table.add_column(part)
    for step in found.steps:
        digests = (step.batch, step.gradient, step.weights)
        table.add_row(str(step.step), *(each[:16] if each else "-" for each in digests))
    console.print(table)
    if (first := found.not_reproducible_from) is None:
        console.print("No step depends on time, faults or a person.")
        return
    console.print(
        f"From step {first} on it need not come out the same a second time:",
        style="yellow",
    )
    for each in found.deviations:
        what = each.rollout or each.group
        console.print(f"  step {each.step}  {each.cause.value}  {what}", soft_wrap=True)
