"""Screens of the benches: what each prints without `--json`, within 80 columns. Imported when it is
printed."""

from collections.abc import Iterable, Mapping
from typing import Any

from cli.tables import Screen, Table
from cli.terminal_text import echo

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


def print_turns(figures: Mapping[str, Any]) -> None:
    table = Table("at once", "turns/s", "p50", "p99", "turn", "rollout", "base turns/s", "base p50")
    table.title = "rollouts at once; milliseconds"
    table.caption = "p50, p99: overhead of a turn; base: without Temporal"
    for concurrency, row in figures.items():
        base = row["baseline"]
        milliseconds = ("overhead_p50_ms", "overhead_p99_ms", "ms_per_turn", "ms_per_rollout")
        table.add_row(
            concurrency,
            _figure(row["turns_per_s"]),
            *(_figure(row[name]) for name in milliseconds),
            _figure(base["turns_per_s"]),
            _figure(base["overhead_p50_ms"]),
        )
    Screen().print(table)


def print_replies(figures: Mapping[str, Any]) -> None:
    table = Table("tokens", "WAL of parts", "of the reply", "ratio", "rows", "read", "lost")
    for length, row in figures.items():
        table.add_row(
            length,
            f"{row['wal_parts_bytes'] / 1000:.1f} kB",
            f"{row['wal_final_bytes'] / 1000:.1f} kB",
            f"{row['wal_ratio']:.2f}",
            str(row["num_rows"]),
            f"{row['read_cpu_ms']:.1f} ms",
            f"{row['lost_at_kill_tokens']} tokens",
        )
    table.caption = "read: CPU time of the client"
    Screen().print(table)


def print_sandboxes(figures: Mapping[str, Any]) -> None:
    columns = (
        *("open_p50_ms", "exec_overhead_p50_ms", "exec_p50_ms", "exec_p95_ms"),
        *("diff_p50_ms", "close_p50_ms"),
    )
    skipped: list[str] = []
    console = Screen()
    for backend, by_concurrency in figures.items():
        if "skipped" in by_concurrency:
            skipped.append(f"{backend} skipped: {by_concurrency['skipped']}")
            continue
        table = Table(
            "at once", "open", "true", "exec", "p95", "diff", "close", "cycles/s", "alive"
        )
        table.title = f"{backend}; milliseconds"
        table.caption = "medians, and p95 of exec; true: a command that does nothing"
        for concurrency, row in by_concurrency.items():
            if "skipped" in row:
                skipped.append(f"{backend} at {concurrency} skipped: {row['skipped']}")
                continue
            table.add_row(
                concurrency,
                *(f"{row[column]:.1f}" for column in columns),
                f"{row['cycles_per_s']:.1f}",
                str(row["max_alive"]),
            )
        console.print(table)
    for line in skipped:
        console.print(line)


def print_train(figures: Mapping[str, Any]) -> None:
    columns = {"Hugging Face": ("hf_tokens_per_s", "ratio")}
    if "beside" in figures:
        columns[figures["beside"]] = ("beside_tokens_per_s", "beside_ratio")
    heads = [head for other in columns for head in (other, "ratio")]
    table = Table("lengths", f"{figures['engine']}, tokens/s", *heads)
    for name in ("equal_lengths", "mixed_lengths"):
        row = figures[name]
        cells = [f"{row['tokens_per_s']:.0f}"]
        for speed, ratio in columns.values():
            cells += [f"{row[speed]:.0f}", f"{row[ratio]:.2f}"]
        table.add_row(name.partition("_")[0], *cells)
    Screen().print(table)
    files = figures["files"]
    echo(
        f"checkpoint: {files['checkpoint_s_per_gb']:.1f} s per GB; "
        f"export: {files['export_s_per_gb']:.1f} s per GB"
    )
    if "large_batch" in figures:
        row = figures["large_batch"]
        echo(
            f"batch of {row['num_sequences']} x {row['tokens_each']} tokens: read in "
            f"{row['read_s']:.1f} s, handed out in {row['hand_out_s']:.1f} s; the event loop "
            f"stood at most {row['max_loop_block_s']:.2f} s; {row['driver_peak_gib']:.2f} GiB"
        )
