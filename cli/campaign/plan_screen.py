"""How a campaign's plan looks in a terminal: memory, demand, time, assumptions, at 80 columns.

Names stand whole at any width; numbers are rounded here and nowhere else. Imported when a plan is
printed.
"""

from typing import Any

from cli.operations.runs.campaign_plan import Planned
from mainspring.config.training.parallel import Device
from mainspring.planning.memory import MemoryPart
from mainspring.planning.step_time import ROLLOUT_STAGES, Stage
from mainspring.words.figures import duration, percent

PARTS = {
    MemoryPart.WEIGHTS: "weights",
    MemoryPart.GRADIENTS: "gradients",
    MemoryPart.OPTIMIZER: "optimizer state",
    MemoryPart.CRITIC: "critic",
    MemoryPart.COMMUNICATION: "communication buffers",
    MemoryPart.ACTIVATIONS: "activations",
    MemoryPart.ATTENTION: "attention",
    MemoryPart.LOGITS: "logits",
    MemoryPart.ALLOCATOR: "gaps between tensors",
    MemoryPart.REST: "libraries and context",
}
STAGES = {
    Stage.GENERATE: "generate tokens",
    Stage.COMMANDS: "run commands",
    Stage.TRAIN: "train",
    Stage.CHECKPOINT: "write the checkpoint",
    Stage.PUBLISH: "publish to engines",
}


FASTER = {
    Stage.GENERATE: "faster with more engines (policy.engines), or fewer tokens of a rollout",
    Stage.COMMANDS: "faster with more sandboxes at once: more nodes, or more room on each",
    Stage.TRAIN: "faster with more ranks, larger micro-batches or trainer.lora",
    Stage.CHECKPOINT: "faster with trainer.checkpoint_every above 1, or "
    "trainer.checkpoint_in_background",
    Stage.PUBLISH: 'faster with policy.publish = "collective", or a faster disk of the engines',
}
"""Ways to make each stage shorter."""


def print_plan(planned: Planned, console: Any = None) -> None:
    from cli.tables import Screen

    console = console or Screen()
    _print_head(planned, console)
    console.print(_memory(planned))
    _print_moments(planned, console)
    _print_fit(planned, console)
    console.print()
    console.print(_demand(planned))
    console.print()
    console.print(_time(planned))
    time = planned.plan.time
    how = "rollouts and training overlap" if time.overlaps else "rollouts, then training"
    _say(console, f"a step takes about {duration(time.total_s)}: {how}", "bold")
    _say(console, f"bottleneck: {STAGES[time.bottleneck]}")
    _say(console, f"            {FASTER[time.bottleneck]}")
    bubble = f"; pipeline stages wait {percent(time.bubble)} of it" if time.bubble else ""
    _say(console, f"training takes {_flops(time.flops)}, all ranks together{bubble}")
    console.print()
    console.print(_assumptions(planned))
    for note in planned.notes:
        _say(console, f"note     {note}", "yellow", has_path=True)


def _print_head(planned: Planned, console: Any) -> None:
    plan = planned.plan
    trainer, shape = plan.config.trainer, plan.shape
    _say(console, f"campaign {plan.config.name}: a plan, nothing was started", "bold")
    active = ""
    if shape.num_experts:
        active = f", {_count(shape.num_active_parameters)} of the layers' active in each token"
    model = plan.config.policy.model
    _say(console, f"model    {model}", has_path=True)
    _say(console, f"         {shape.model_type}, {_count(shape.num_parameters)} parameters{active}")
    sizes = [
        f"{label} {getattr(trainer, name)}"
        for label, name in (
            ("tensor", "tensor_parallel"),
            ("pipeline", "pipeline_parallel"),
            ("context", "context_parallel"),
            ("expert", "expert_parallel"),
            ("data", "data_parallel"),
        )
        if getattr(trainer, name) > 1
    ]
    where = "GPU" if trainer.device is Device.CUDA else "CPU"
    ranks = f"{trainer.world_size} rank{'s' if trainer.world_size > 1 else ''} on {where}"
    split = f" ({', '.join(sizes)})" if sizes else ""
    _say(console, f"trainer  engine {trainer.engine_name}, {trainer.dtype.value}, {ranks}{split}")
    _say(
        console,
        f"         recompute {trainer.recompute.value}, micro-batches of at most "
        f"{plan.micro_batch.num:,} tokens",
    )
    console.print()


def _memory(planned: Planned) -> Any:
    ranks = planned.plan.ranks
    on = "GPU" if planned.plan.config.trainer.device is Device.CUDA else "process"
    names = [rank.kind.name if len(ranks) > 1 else f"each {on}" for rank in ranks]
    table = _table(f"memory of a {on}, GB", *names)
    for part, label in PARTS.items():
        sizes = [rank.peak.bytes_of.get(part, 0) for rank in ranks]
        if any(sizes):
            table.add_row(label, *map(_gb, sizes))
    table.add_section()
    table.add_row("in all", *(_gb(rank.peak.num_bytes) for rank in ranks), style="bold")
    table.add_row("number of ranks", *(f"{rank.kind.num_ranks}" for rank in ranks))
    table.add_row("most while it computes", *(rank.peak.name.value for rank in ranks))
    return table


def _print_moments(planned: Planned, console: Any) -> None:
    """The largest rank in its other phases, and the memory of a host."""
    plan = planned.plan
    largest, host = plan.largest, plan.host
    which = f" of a {largest.kind.name}" if len(plan.ranks) > 1 else ""
    parts = [
        f"{moment.name.value} {_gb(moment.num_bytes)}"
        for moment in largest.moments
        if moment is not largest.peak
    ]
    _say(console, f"in other phases{which}, GB: {', '.join(parts)}")
    ranks = f"{host.num_ranks} rank{'s' if host.num_ranks > 1 else ''}"
    _say(
        console,
        f"a host with {ranks}, GB: import {_gb(host.import_bytes)}, "
        f"steps {_gb(host.step_bytes)}, checkpoint {_gb(host.checkpoint_bytes)}",
    )


def _print_fit(planned: Planned, console: Any) -> None:
    plan = planned.plan
    if plan.config.trainer.device is not Device.CUDA:
        return
    if planned.gpu_bytes is None:
        _say(console, f"fits?    {planned.gpu_source}")
        return
    need, have = _gb(plan.largest.peak.num_bytes), _gb(planned.gpu_bytes)
    if planned.fits:
        _say(console, f"fits     {need} GB of {have} GB ({planned.gpu_source})", "green")
        return
    _say(
        console,
        f"does not fit: a rank needs {need} GB, a GPU has {have} GB ({planned.gpu_source})",
        "bold red",
    )
    if not planned.changes:
        _say(console, "no change of [trainer] was found that fits: take larger GPUs or more")
        return
    _say(console, "set in [trainer] one of:")
    for change in planned.changes:
        gpus = f"each of {change.num_ranks} GPUs" if change.num_ranks > 1 else "1 GPU"
        _say(console, f"  {change}")
        _say(console, f"      {_gb(change.peak_bytes)} GB on {gpus}")


def _demand(planned: Planned) -> Any:
    plan = planned.plan
    demand, config = plan.demand, plan.config
    table = _table("needed", "expected", "at most")
    table.add_row("rollouts in a step", f"{demand.rollouts_per_step:,}", "")
    table.add_row("rollouts in flight", "", f"{demand.rollouts_in_flight:,}")
    table.add_row("of an evaluation, too", "", f"{demand.evaluation_rollouts:,}")
    table.add_row("sandboxes open", "", f"{demand.sandboxes:,}")
    table.add_row("their memory, GB", "", _gb(demand.sandbox_memory_bytes))
    table.add_row("their cores", "", f"{demand.sandbox_cpus:,.0f}")
    table.add_row("their disk, GB", "", _gb(demand.sandbox_disk_bytes))
    table.add_row(
        "tokens of a step", f"{demand.tokens_per_step:,}", f"{demand.most_tokens_per_step:,}"
    )
    table.add_row("of them generated", f"{demand.action_tokens_per_step:,}", "")
    engines = len(config.policy.engines) or 1
    of_all = "the engine" if engines == 1 else f"{engines} engines"
    table.add_row(
        f"KV-cache tokens of {of_all}", f"{demand.kv_tokens:,}", f"{demand.most_kv_tokens:,}"
    )
    table.add_row(
        "their memory, GB",
        _gb(demand.kv_tokens * demand.kv_bytes_per_token),
        _gb(demand.most_kv_tokens * demand.kv_bytes_per_token),
    )
    table.add_row("a checkpoint on disk, GB", _gb(demand.checkpoint_bytes), "")
    text = f"{demand.num_checkpoints} checkpoints"
    if demand.num_exports:
        text += f", {demand.num_exports} exports"
    table.add_row(f"{text}, GB", "", _gb(demand.disk_bytes))
    return table


def _time(planned: Planned) -> Any:
    time = planned.plan.time
    table = _table("time of a step", "time", "runs beside training" if time.overlaps else "")
    for stage, seconds in time.seconds_of.items():
        beside = "yes" if time.overlaps and stage in ROLLOUT_STAGES else ""
        table.add_row(STAGES[stage], duration(seconds), beside)
    return table


def _assumptions(planned: Planned) -> Any:
    assumed = planned.plan.assumed
    table = _table("assumed", "value")
    table.add_column("from", justify="left")
    on_cpu = planned.plan.config.trainer.device is Device.CPU
    rows = [
        ("tokens of a rollout", f"{assumed.tokens_per_rollout:,}", "tokens_per_rollout"),
        ("generated of them", percent(assumed.action_share), "action_share"),
        ("turns of a rollout", f"{assumed.turns_per_rollout}", "turns_per_rollout"),
        ("a command", duration(assumed.command_s), "command_s"),
        (
            "speed of a rank" if on_cpu else "peak of a GPU",
            f"{assumed.peak_flops_per_rank / 1e12:,.3g} TFLOP/s",
            "peak_flops_per_rank",
        ),
        ("used of that (MFU)", percent(assumed.mfu), "mfu"),
        (
            "an engine generates",
            f"{assumed.decode_tokens_per_s:,.0f} tokens/s",
            "decode_tokens_per_s",
        ),
        ("checkpoints' disk", f"{assumed.disk_bytes_per_s / 1e9:.3g} GB/s", "disk_bytes_per_s"),
    ]
    for label, value, name in rows:
        if name in assumed.source:
            table.add_row(label, value, assumed.source[name])
    return table


def _table(title: str, *columns: str) -> Any:
    from cli.tables import Table

    table = Table(title)
    for column in columns:
        table.add_column(column, justify="right")
    return table


def _say(console: Any, text: str, style: str = "", *, has_path: bool = False) -> None:
    """A path stays on its line: what is copied from the screen has no line break in it."""
    console.print(text, style=style, soft_wrap=has_path)


def _gb(num_bytes: int) -> str:
    gigabytes = num_bytes / 1e9
    if num_bytes == 0:
        return "0"
    if gigabytes < 0.01:
        return "< 0.01"
    return f"{gigabytes:.2f}" if gigabytes < 10 else f"{gigabytes:,.0f}"


def _flops(flops: float) -> str:
    return f"{flops / 1e15:,.1f} PFLOP" if flops >= 1e15 else f"{flops / 1e12:,.2f} TFLOP"


def _count(number: int) -> str:
    if number < 1e6:
        return f"{number:,}"
    return f"{number / 1e9:.2f} B" if number >= 1e9 else f"{number / 1e6:.1f} M"
