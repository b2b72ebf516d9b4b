"""`mainspring bench ...`: figures as JSON, measured on this machine in one run."""

import json
from collections.abc import Coroutine
from enum import StrEnum
from typing import Annotated, Any, TypeVar

import typer

from cli.bench.simulate_command import simulate
from cli.options import Json
from cli.terminal_text import echo

T = TypeVar("T")
Together = Annotated[
    int,
    typer.Option(min=1, max=50, help="Number of turns that one activity plays."),
]


class TrainedBy(StrEnum):
    PLAIN = "plain"
    """Megatron-core's model in float32."""
    FSDP = "fsdp"
    """The model of transformers, sharded by FSDP2."""


app = typer.Typer(name="bench", help="Benchmark this machine.", no_args_is_help=True)
app.command()(simulate)


@app.command()
def turns(turns_per_activity: Together = 1, as_json: Json = False) -> None:
    """Measure turns per second and overhead per turn, with a no-op model and sandbox.

    "baseline" is the same activities and database called from plain asyncio, without Temporal.
    "a turn" and "a rollout" are what one more of them costs: a rollout's begin, grading and end
    without its turns.
    """
    from cli.bench.bench_turns import measure

    figures = _run(measure(turns_per_activity))
    if as_json:
        typer.echo(json.dumps(figures))
        return
    from cli.bench.bench_screen import print_turns

    print_turns(figures)


@app.command()
def replies(
    repeated: Annotated[
        bool,
        typer.Option("--repeated", help="The engine repeats the whole reply so far in each event."),
    ] = False,
    as_json: Json = False,
) -> None:
    """Measure what a reply of 256 to 32,768 tokens costs while it is streamed.

    Client, writer of parts and Postgres are real; the engine streams random tokens at 100 tokens
    per second, or faster if the reply would take more than 10 seconds. "lost" is what a kill of
    the worker would have cost at the worst moment.
    """
    from cli.bench.bench_replies import measure

    figures = _run(measure(lambda line: echo(line, dim=True, err=True), repeated=repeated))
    if as_json:
        typer.echo(json.dumps(figures))
        return
    from cli.bench.bench_screen import print_replies

    print_replies(figures)


@app.command()
def nodes(
    num_nodes: Annotated[
        int, typer.Option("--nodes", min=1, max=1000, help="Number of fake nodes.")
    ] = 100,
    polls: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=100,
            help="Number of polls that each of a node's three workers keeps open (default: one, "
            "and more as tasks come).",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Measure how soon many idle nodes start an activity, and what Temporal refuses them.

    Fake nodes have the workers of real ones, on a Temporal server of their own. "taken for dead"
    are activities that no node took in time.
    """
    from cli.bench.bench_nodes import measure

    figures = _run(
        measure(lambda line: echo(line, dim=True, err=True), num_nodes=num_nodes, polls=polls)
    )
    if as_json:
        typer.echo(json.dumps(figures))
        return
    for key, value in figures.items():
        echo(f"{key.replace('_', ' '):16} {'as they scale' if value is None else value}")


@app.command()
def scale(
    rollouts: Annotated[
        str, typer.Option(help="Numbers of rollouts at once, ascending.")
    ] = "50,200,1000,5000",
    num_turns: Annotated[
        int, typer.Option("--turns", min=1, max=500, help="Number of turns of each rollout.")
    ] = 10,
    turns_per_activity: Together = 5,
    num_tokens: Annotated[
        int,
        typer.Option(
            "--tokens",
            min=0,
            max=1_000_000,
            help="Number of tokens of each rollout at its end (0: 80 a turn).",
        ),
    ] = 0,
    num_workers: Annotated[
        int, typer.Option("--workers", min=1, max=20, help="Number of rollout workers.")
    ] = 1,
    reply_s: Annotated[
        float,
        typer.Option(
            min=0,
            max=60,
            help="Seconds that the model waits before it replies. Above 0 all "
            "rollouts are in flight together.",
        ),
    ] = 0,
    limit_s: Annotated[
        float, typer.Option(min=1, help="Seconds that one number of rollouts may take.")
    ] = 900,
    soak_s: Annotated[
        float | None,
        typer.Option(
            min=120,
            help="Seconds to keep the first number of rollouts in flight, to see what grows.",
        ),
    ] = None,
    is_sandboxed: Annotated[
        bool,
        typer.Option(
            "--sandboxes",
            help="Run commands in bubblewrap sandboxes, and grade patches in others.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Measure speed, memory and bytes with many rollouts at once, on this machine.

    The workflow, the workers, Temporal and Postgres are real; the model does nothing, and without
    --sandboxes the sandbox neither.
    Each number of rollouts has services and workers of its own, which are removed. Exits 4 if
    rollouts did not end as expected or in time.
    """
    from cli.bench.bench_scale import measure, read_numbers
    from cli.bench.bench_soak import measure_soak
    from cli.bench.loaded_stack import Load
    from cli.progress import counting
    from mainspring.errors import UsageError

    numbers = read_numbers(rollouts)
    if turns_per_activity > num_turns:
        raise UsageError(
            f"--turns-per-activity {turns_per_activity} is above --turns {num_turns}",
            remedy="an activity plays turns of one rollout: give it as many at most",
        )
    load = Load(
        num_turns, turns_per_activity, limit_s, reply_s, num_workers, num_tokens, is_sandboxed
    )
    figures: dict[str, dict[str, Any]] = {}
    try:
        if soak_s is None:
            _run(measure(numbers, load, counting, figures))
        else:
            _run(measure_soak(numbers[0], soak_s, load, counting, figures))
    finally:
        # Also of what came before the number that failed.
        if as_json:
            typer.echo(json.dumps(figures))
        elif figures:
            from cli.bench.bench_screen import print_scale, print_soak

            (print_scale if soak_s is None else print_soak)(figures)


@app.command()
def gateway(
    sessions: Annotated[
        str, typer.Option(help="Numbers of sessions at once, ascending.")
    ] = "1,32,200",
    num_calls: Annotated[
        int,
        typer.Option(
            "--calls",
            min=1,
            max=2000,
            help="Number of calls of one session; many sessions ask four times as many together.",
        ),
    ] = 200,
    prompt_tokens: Annotated[
        str, typer.Option(help="Numbers of tokens of the first prompt, ascending.")
    ] = "1000,8000,20000",
    as_json: Json = False,
) -> None:
    """Measure what a request of a program costs beyond the engine, and requests per second.

    Gateway, rollout worker, workflow, Temporal, Postgres and tokenizer are real; the engine
    answers at once, and sandboxes are clients of the bench. Histories grow call by call.
    """
    from cli.bench import bench_gateway

    numbers = bench_gateway.read_numbers("--sessions", sessions, bench_gateway.MAX_SESSIONS)
    sizes = bench_gateway.read_numbers("--prompt-tokens", prompt_tokens, 200_000)
    figures: dict[str, dict[str, Any]] = {}
    try:
        _run(bench_gateway.measure(numbers, num_calls, sizes, figures))
    finally:
        # Also of what came before the load that failed.
        if as_json:
            typer.echo(json.dumps(figures))
        elif figures:
            from cli.bench.bench_screen import print_gateway

            print_gateway(figures)


@app.command()
def grade(
    num_tasks: Annotated[
        int, typer.Option("--tasks", min=1, help="Number of patches to grade.")
    ] = 500,
    as_json: Json = False,
) -> None:
    """Measure how many gold patches are graded per minute, with real workers and sandboxes.

    "faults" are gradings that ended without a verdict because something else failed.
    """
    from cli.bench.bench_grade import measure

    figures = _run(measure(num_tasks, lambda text: echo(text, dim=True, err=True)))
    if as_json:
        typer.echo(json.dumps(figures))
        return
    for key, value in figures.items():
        echo(f"{key:16} {value}")


@app.command()
def sandbox(
    image: Annotated[
        str | None,
        typer.Option(help="Image with bash and a git repository, for the Docker backend."),
    ] = None,
    workdir: Annotated[
        str, typer.Option(help="Folder of the repository in the image.")
    ] = "/testbed",
    as_json: Json = False,
) -> None:
    """Measure what opening, using and closing a sandbox costs, by backend and load.

    "docker_exec_cli" is a plain way to compare with: one `docker exec` process per command.
    """
    from cli.bench.bench_sandbox import measure

    figures = _run(measure(image, workdir))
    if as_json:
        typer.echo(json.dumps(figures))
        return
    from cli.bench.bench_screen import print_sandboxes

    print_sandboxes(figures)


@app.command()
def train(
    num_steps: Annotated[
        int, typer.Option("--steps", min=1, max=50, help="Number of steps on each side.")
    ] = 3,
    engine: Annotated[
        TrainedBy, typer.Option(help="Step engine that is measured.")
    ] = TrainedBy.PLAIN,
    beside: Annotated[
        TrainedBy | None,
        typer.Option(help="Another step engine, measured in turns with it.", show_default=False),
    ] = None,
    large_batch: Annotated[
        bool,
        typer.Option(
            "--large-batch",
            help="Also store 512 rollouts of 32,768 tokens, and time how they reach a rank.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Measure a trainer's step beside the same step by Hugging Face, on one CPU thread.

    Hugging Face takes one sequence at a time. All sides take turns; speeds are medians, in
    tokens per second of CPU time.
    """
    from mainspring.errors import UsageError

    if beside is engine:
        raise UsageError(
            f"--beside {engine} is the engine that --engine names",
            remedy="name two engines, or leave --beside out",
        )
    from cli.bench.bench_train import measure

    def say(line: str) -> None:
        echo(line, err=True)

    large: dict[str, Any] = {}
    if large_batch:  # first: its peak of memory is a process's without torch
        from cli.bench import bench_large_batch

        large["large_batch"] = _run(bench_large_batch.measure(say))
    figures = measure(num_steps, say, engine, beside) | large
    if as_json:
        typer.echo(json.dumps(figures))
        return
    from cli.bench.bench_screen import print_train

    print_train(figures)


def _run(work: Coroutine[Any, Any, T]) -> T:
    """Its result. SIGTERM and Ctrl-C end it in order, so that what it started is removed."""
    import asyncio
    import signal

    from cli.operations.machine.cancelled_by import cancelled_by

    async def run() -> T:
        with cancelled_by(signal.SIGTERM, signal.SIGINT):
            return await work

    try:
        return asyncio.run(run())
    except (asyncio.CancelledError, KeyboardInterrupt):
        echo("stopped; what the bench had started is removed", err=True)
        raise typer.Exit(130) from None
