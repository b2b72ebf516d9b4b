"""The tables of `mainspring bench scale` and `bench gateway`, within 80 columns. Imported when they
are printed."""

from collections.abc import Iterable, Mapping
from typing import Any

from cli.tables import Screen, Table

NAMES = {
    "rollout_worker": "rollout worker",
    "node": "node",
    "temporal": "Temporal",
    "postgres": "Postgres",
}
MIB = 1 << 20


def print_scale(figures: Mapping[str, Mapping[str, Any]]) -> None:
    console = Screen()
    speed = _table("speed", "in flight", "turns/s", "turn p50", "turn p99", "wall", "odd ends")
    cost = _table("CPU of a turn", "all", *NAMES.values())
    memory = _table("peak memory, MiB", "workers", *NAMES.values())
    stored = _table(
        "stored",
        *(
            "Temporal MiB",
            "a rollout KiB",
            "Postgres MiB",
            "a rollout KiB",
            "events a turn",
            "KiB a turn",
        ),
    )
    for number, row in figures.items():
        speed.add_row(
            number,
            str(row["most_in_flight"]),
            *(
                _figure(row["turns_per_s"]),
                _ms(row["overhead_p50_ms"]),
                _ms(row["overhead_p99_ms"]),
            ),
            *(f"{row['wall_s']:.0f} s", str(row["unexpected_ends"])),
        )
        cost.add_row(number, _ms(row["cpu_ms_per_turn"]), *map(_ms, _of(row["cpu_ms_per_turn_of"])))
        memory.add_row(
            number, f"{row['workers_peak_mib']:.0f}", *(f"{x:.0f}" for x in _of(row["peak_mib_of"]))
        )
        per_rollout = row["bytes_per_rollout_of"]
        history = row.get("history_bytes_per_turn")
        stored.add_row(
            number,
            *(_figure(row["bytes_of"]["temporal"] / MIB), _figure(per_rollout["temporal"] / 1024)),
            *(_figure(row["bytes_of"]["postgres"] / MIB), _figure(per_rollout["postgres"] / 1024)),
            _figure(row.get("history_events_per_turn")),
            _figure(None if history is None else history / 1024),
        )
    for table in (speed, cost, memory, stored):
        console.print(table)
    for number, row in figures.items():
        if (share := row.get("histories_known")) is not None:
            console.print(
                f"{number} rollouts: rollout workers knew {share:.1%} of the "
                f"{row['num_histories_read']} histories that replies continued"
            )


def print_soak(figures: Mapping[str, Mapping[str, Any]]) -> None:
    console = Screen()
    for number, row in figures.items():
        table = Table("at", "turns/s", "worker", *list(NAMES.values())[1:], "files", "stored")
        table.title = (
            f"{number} rollouts at once: memory and bytes stored in MiB, the workers' files"
        )
        for sample in row["samples"]:
            files = sample["open_files_of"]
            table.add_row(
                f"{sample['at_s']:.0f} s",
                _figure(sample["turns_per_s"]),
                *(f"{x:.0f}" for x in _of(sample["memory_mib_of"])),
                str(files["rollout_worker"] + files["node"]),
                f"{sum(sample['bytes_of'].values()) / MIB:.0f}",
            )
        slope_of = row.get("memory_slope_mib_per_hour_of")
        if slope_of:
            table.add_section()
            table.add_row("MiB/hour", "", *map(_figure, _of(slope_of)))
        console.print(table)
        first, last = row["samples"][0]["left_of"], row["samples"][-1]["left_of"]
        for name, number_left in last.items():
            console.print(
                f"{name.replace('_', ' ')}: {first[name]} at first, {number_left} at last"
            )
        console.print(
            f"{row['num_ended']} rollouts ended, {row['unexpected_ends']} otherwise than expected",
        )


def print_gateway(figures: Mapping[str, Mapping[str, Any]]) -> None:
    table = Table("sessions", "prompt", "p50", "p99", "first", "last", "requests/s", "KiB each")
    table.title = "overhead of a request; p50 of the first and last calls; the gateway's memory"
    for number, row in figures.items():
        for size, row_of_size in {"": row, **row.get("by_prompt_tokens", {})}.items():
            table.add_row(
                number,
                size,
                *(_ms(row_of_size["overhead_p50_ms"]), _ms(row_of_size["overhead_p99_ms"])),
                *(_ms(row_of_size["first_calls_p50_ms"]), _ms(row_of_size["last_calls_p50_ms"])),
                _figure(row_of_size["requests_per_s"]),
                _figure(row_of_size["kib_per_session_of"]["gateway"]),
            )
    Screen().print(table)


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("rollouts", justify="right")
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _of(by_process: Mapping[str, Any]) -> Iterable[Any]:
    return (by_process[name] for name in NAMES)


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} ms" if value < 100 else f"{value:.0f} ms"


def _figure(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
