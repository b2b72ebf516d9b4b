"""How rollouts look in a terminal: the list, and one rollout turn by turn.

What models and commands wrote is shown without its control characters: it cannot steer the
terminal. Ids are never cut.
"""

import os
import re
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cli.terminal_text import plain
from mainspring.programs.last_words import last_words
from mainspring.status import Player, RolloutPhase, Verdict
from mainspring.words.ends import ENDS, SUSPICIONS, UNTRAINED, VERDICTS, grade_lines
from mainspring.words.figures import dollars, duration, number

_REPOSITORY = "swe"
"""Kind of the tasks that have a patch and tests (`mainspring.tasks.swe_task`, which is heavy)."""
GAP = 2
"""Between two columns."""
TASK_WIDTH = 24
"""Ids of tasks are folded in a column of at least this, or stand below."""
INDENT = 2
STOPPED = -1
"""The exit code of a program that its sandbox ended, at a limit or for a cancel."""
PRINTED_CHARS = 300
"""Characters shown of a program's output."""
SHOWN_INSTRUCTIONS = 300
"""Characters of a client's system prompt; those of Codex and Claude Code have 12,000 and more."""
_MESSAGE = re.compile(
    r"(?ms)^\[(?:system|user|assistant|tool)\] .*?(?=^\[(?:user|assistant|tool|system)\] |\Z)"
)
PATCH_CHARS = 200_000
"""Characters shown of a patch; one of 30 MB takes a terminal minutes."""
NUMBERS = ("reward", "turns", "try", "time")


def print_list(
    campaign: str, rows: list[Any], total: int, limit: int, *, with_time: bool = False
) -> None:
    """`rows` are `infra.db.reading.rollout_search.Found`. `with_time`: what they took, as it is
    what they are sorted by."""
    from cli.tables import Screen

    console = Screen()
    if not rows:
        console.print(f"no rollout of {campaign} matches", soft_wrap=True)
        return
    named = [plain(row.task) for row in rows]
    begin = _common_start(named)
    ids = [plain(row.id).removeprefix(f"{campaign}/") for row in rows]
    tasks = [task.removeprefix(begin) for task in named]
    title = f"rollouts of {campaign}" + (f"; task ids begin with {begin}" if begin else "")
    console.print(title, soft_wrap=True, style="bold")
    facts = _facts(rows)
    if with_time:
        facts["time"] = [duration(row.spent_s) for row in rows]
    head, *lines = _lines(ids, tasks, facts, console.width)
    console.print(head, soft_wrap=True, style="bold")
    for line in lines:
        console.print(line, soft_wrap=True)
    more = f"; --limit {min(total, 10 * limit)} for more" if total > len(rows) else ""
    console.print(f"{len(rows)} of {total}{more}", style="dim")


def _lines(
    ids: list[str], tasks: list[str], facts: dict[str, list[str]], width: int
) -> Iterator[str]:
    """The head, then the rows. Where there is no room for both, a rollout stands above its task."""
    # A column is as wide as its longest word at least, and as its longest cell where there is room.
    widths = {name: max(map(len, " ".join((name, *facts[name])).split())) for name in facts}
    room = width - sum(widths.values()) - GAP * len(facts)
    id_width, task_width = max(map(len, (*ids, "rollout"))), max(map(len, (*tasks, "task")))
    beside = id_width + GAP + min(task_width, TASK_WIDTH) <= room
    if beside:
        first = {"rollout": id_width, "task": min(task_width, room - id_width - GAP)}
        room -= first["rollout"] + GAP + first["task"]
    else:
        first = {"rollout, task": max(TASK_WIDTH, min(INDENT + task_width, room))}
        room -= first["rollout, task"]
    for name in widths:
        more = max(0, min(room, max(map(len, facts[name])) - widths[name]))
        widths[name] += more
        room -= more
    widths = first | widths
    yield _row(list(widths), widths)
    for ident, task, *cells in zip(ids, tasks, *facts.values(), strict=True):
        if beside:
            yield _row([ident, task, *cells], widths)
        else:
            yield f"{ident}\n{_row([task, *cells], widths, INDENT)}"


def _row(cells: list[str], widths: dict[str, int], indent: int = 0) -> str:
    """Folded where a cell has no room, the id of a task also inside; the first cell indented."""
    columns: list[list[str]] = []
    for cell, (name, width) in zip(cells, widths.items(), strict=True):
        begin = "" if columns else " " * indent
        folded = [begin + part for part in textwrap.wrap(cell, width - len(begin))]
        columns.append([f"{part:{'>' if name in NUMBERS else '<'}{width}}" for part in folded])
    blanks = [" " * width for width in widths.values()]
    rows = range(max(map(len, columns)))
    return "\n".join(
        (" " * GAP)
        .join(
            column[row] if row < len(column) else blank
            for column, blank in zip(columns, blanks, strict=True)
        )
        .rstrip()
        for row in rows
    )


def _facts(rows: list[Any]) -> dict[str, list[str]]:
    """The columns beside rollout and task that tell something, by name."""
    facts: dict[str, list[str]] = {}
    if any(row.player is not Player.POLICY for row in rows):
        facts["patch"] = [row.player.value for row in rows]
    facts["state"] = [
        _words(row.stop_reason if row.phase is RolloutPhase.DONE else row.phase) for row in rows
    ]
    facts["verdict"] = [
        _words(row.verdict) + (" (suspicious)" if row.suspicions else "") for row in rows
    ]
    facts["reward"] = [number(row.reward) for row in rows]
    facts["turns"] = [str(row.num_turns) for row in rows]
    if any(row.labels for row in rows):
        facts["labels"] = [", ".join(row.labels) or "-" for row in rows]
    if any(row.epoch for row in rows):
        facts["try"] = [str(row.epoch + 1) for row in rows]
    return facts


def _common_start(ids: list[str]) -> str:
    """Common beginning of all ids, up to a separator: it would only take room."""
    # Letter by letter, then cut back to a separator.
    common = os.path.commonprefix(ids) if len(ids) > 1 else ""  # noqa: RUF071
    return re.sub(r"[^-_/.:]*$", "", common)


def print_one(seen: Any, *, only_turn: int | None, view: str | None = None) -> None:
    """`seen` is an `reports.one_rollout.RolloutView`."""
    with _paged() as console:

        def say(text: str, style: str = "") -> None:
            console.print(plain(text), style=style, soft_wrap=True)

        if only_turn is None:
            _say_head(say, seen)
            if view is not None:
                say(f"view       {view}")
            console.rule("issue", align="left")
            say(seen.task.issue)
        for turn in seen.turns:
            if only_turn in (None, turn.number):
                _say_turn(console, say, turn, whole=only_turn is not None)
        if only_turn is not None:
            return
        is_own = getattr(seen.task, "kind", _REPOSITORY) != _REPOSITORY
        console.rule("result" if is_own else "patch", align="left")
        say(seen.patch[:PATCH_CHARS] if seen.patch else "(empty)")
        if len(seen.patch or "") > PATCH_CHARS:
            say(
                f"({len(seen.patch) - PATCH_CHARS:,} characters more; `mainspring rollout show "
                f"{seen.record.id} --patch` prints it whole)",
                "dim",
            )
        if seen.grade_output:
            console.rule("grading" if is_own else "test output", align="left")
            say(seen.grade_output, "dim")


def _trained(training: Any) -> str:
    """Tell in a line what its step did with it."""
    trained = training.trained
    if trained.masked_why is None:
        told = f"step {training.step}, {trained.num_trained_tokens:,} tokens"
    else:
        told = f"no token in step {training.step}: {UNTRAINED[trained.masked_why]}"
    if trained.advantage is None:
        return told
    return f"{told}; {'mean ' if trained.is_mean else ''}advantage {trained.advantage:+.3g}"


def _say_head(say: Any, seen: Any) -> None:
    record = seen.record
    say(f"rollout    {record.id}", "bold")
    # An evaluation has no versions of its own.
    origin = f"model {seen.model}" if seen.model else f"policy version {seen.policy_version}"
    if record.player is not Player.POLICY:
        origin = f"{record.player} patch"
    say(f"task       {record.task} ({seen.split}, {origin})")
    if seen.agent is not None:
        say(f"agent      {seen.agent}")
    if record.phase is RolloutPhase.DONE:
        verdict = VERDICTS.get(record.verdict, "not scored")
        if record.verdict is Verdict.NOT_RESOLVED and seen.report and seen.report.score is not None:
            verdict = f"not resolved: it scored {seen.report.score:g}"  # no test told so
        say(f"result     {verdict}; reward {number(record.reward)}")
        ended = ENDS.get(record.stop_reason, "-")
        if any(ran.is_over for turn in seen.turns for ran in turn.commands):
            ended = "its environment"
        # A program's calls are not its turns: some are of branches that it gave up.
        counted = f"{record.num_turns} {'turns' if seen.program is None else 'calls'}"
        say(f"ended by   {ended}, after {counted}, {duration(record.spent_s)}")
        if seen.training is not None:
            say(f"trained    {_trained(seen.training)}")
    else:
        say(f"phase      {record.phase}, {record.num_turns} turns so far")
    if record.epoch:
        say(f"attempt    {record.epoch + 1}: its outcome replaced those before")
    if seen.cost is not None:
        say(f"cost       {dollars(seen.cost)}")
    if seen.program is not None:
        _say_program(say, seen.program)
    if record.patch_note:
        say(f"patch      {record.patch_note}")
    if record.started_at:
        finished = f" to {record.finished_at:%H:%M:%S}" if record.finished_at else ""
        say(f"time       {record.started_at:%Y-%m-%d %H:%M:%S}{finished} UTC")
    if spent := {name: s for name, s in record.phase_s.items() if s}:
        say(f"spent on   {', '.join(f'{name} {duration(s)}' for name, s in spent.items())}")
    _say_marks(say, seen.marks)
    if record.fault:
        say(f"fault      {record.fault}", "red")
    for kind in record.suspicions:
        say(f"suspicious {SUSPICIONS.get(kind, kind)}", "yellow")
    for name, value in (record.reward_parts or {}).items():
        say(f"  {name:24} {number(value)}", "dim")
    for judgement in seen.judgements:
        say(_judgement(judgement), "dim")
    report = seen.report.model_dump(mode="json") if seen.report else {}
    if "score" in (record.reward_parts or {}):
        report.pop("score", None)
    for line in grade_lines(report):
        say(line, "dim")


def _say_marks(say: Any, marks: Any) -> None:
    for label in marks.labels:
        say(f"label      {label.name}, by {label.by}, attempt {label.epoch + 1}")
    if marks.note is not None:
        say(f"note       by {marks.note.by}, attempt {marks.note.epoch + 1}:")
        say(textwrap.indent(marks.note.text, "  "))


def _say_program(say: Any, program: Any) -> None:
    counts = [f"{program.num_calls} calls"]
    for count, what in (
        (program.num_replayed, "answered again from the store"),
        (program.num_abandoned, "not asked again by the last life"),
        (program.num_sent_again, "sent to the endpoint again"),
        (program.num_refused, "refused"),
    ):
        if count:
            counts.append(f"{count} {what}")
    say(f"program    {program.kind}: {', '.join(counts)}")
    for life in program.lives:
        say(f"  life {life.number}: {_life(life)}", "dim")
        if words := last_words(life.output or ""):
            say(f"    its words: {_cut(words)}", "dim")
        elif printed := _end(life.output or ""):
            say(f"    printed: {printed}", "dim")


def _cut(text: str) -> str:
    """The beginning, in one line."""
    return textwrap.shorten(plain(text), PRINTED_CHARS, placeholder=" ...")


def _end(text: str) -> str:
    """The end, in one line: whole words of it, and of JSON the last whole line."""
    lines = [line for line in plain(text).splitlines() if line.strip()]
    if lines and lines[-1].startswith("{"):
        return _cut(lines[-1])
    words = " ".join(" ".join(lines).split())
    if len(words) <= PRINTED_CHARS:
        return words
    return f"... {words[-PRINTED_CHARS:].partition(' ')[2] or words[-PRINTED_CHARS:]}"


def _life(life: Any) -> str:
    if life.taken_by is None:
        ended = "no end seen" if life.returncode is None else f"exit code {life.returncode}"
        if life.returncode == STOPPED:
            ended = "stopped at a limit, or by a cancel"
        return ended + (f", bundle {life.bundle_sha256}" if life.bundle_sha256 else "")
    ended = f"ended by {life.ended_by}" if life.ended_by else "no end seen"
    note = f": {life.note}" if life.note else ""
    return f"taken by {life.taken_by or 'an agent without a name'}, {ended}{note}"


def _judgement(judgement: Any) -> str:
    """One line: the score, the votes, and why some are missing."""
    votes = ", ".join("unread" if vote is None else f"{vote:g}" for vote in judgement.votes)
    line = f"judge {judgement.judge}: {number(judgement.score)} (votes: {votes or 'none'})"
    return line if judgement.missing is None else f"{line}; missing: {judgement.missing}"


def _say_turn(console: Any, say: Any, turn: Any, *, whole: bool) -> None:
    _say_reply(console, say, turn, whole=whole)
    for judgement in turn.judgements:
        say(f"[{_judgement(judgement)}]", "dim")
        for text in judgement.texts if whole else ():
            say(f"[judge {judgement.judge} wrote] {text}", "dim")


def _say_reply(console: Any, say: Any, turn: Any, *, whole: bool) -> None:
    versions = ", ".join(map(str, turn.policy_versions))
    facts = [f"version {versions}"] if versions else []
    if turn.num_prompt_tokens is not None and turn.num_completion_tokens is not None:
        facts.append(f"{turn.num_prompt_tokens:,} + {turn.num_completion_tokens:,} tokens")
    facts.append(duration(turn.reply_s))
    if turn.extends != (turn.number - 1 or None):
        facts.append("a new branch" if turn.extends is None else f"extends turn {turn.extends}")
    if turn.rewritten:
        facts.append("rewritten")
    if turn.branch not in (None, "main"):
        facts.append(f"branch {turn.branch}")
    console.rule(f"turn {turn.number} ({'; '.join(facts)})", align="left")
    if turn.rewritten and whole:
        say(turn.rewritten, "dim")
    if turn.told:
        say(turn.told if whole else _without_instructions(turn), "dim")
    is_dialogue = turn.told or (turn.rewritten and whole)
    say(f"[assistant] {turn.reply}" if is_dialogue else turn.reply)
    if turn.not_run is not None:
        say(f"[not run: {turn.not_run}]", "yellow")
        return
    for ran in turn.commands:
        if len(turn.commands) > 1:
            say(f"$ {ran.command}")
        code = "killed at its timeout" if ran.timed_out else f"exit {ran.returncode}"
        reward = "" if ran.reward is None else f", reward {ran.reward:g}"
        say(f"[{code}, {duration(ran.wall_s)}{reward}]", "dim" if ran.returncode == 0 else "red")
        say(ran.output.rstrip("\n"), "dim")
        if ran.truncated:
            say("[the output was longer than what is kept]", "dim")


def _without_instructions(turn: Any) -> str:
    """Prompt of the turn, the client's own system prompt cut after its beginning."""
    return _MESSAGE.sub(lambda match: _shortened(match[0], turn.number), turn.told)


def _shortened(message: str, turn: int) -> str:
    if not message.startswith("[system]") or len(message) <= 2 * SHOWN_INSTRUCTIONS:
        return message
    begin = message[:SHOWN_INSTRUCTIONS].rpartition(" ")[0]
    left = len(message) - len(begin)
    return f"{begin} ...\n[{left:,} characters more: --turn {turn} shows them]\n"


@contextmanager
def _paged() -> Iterator[Any]:
    """A console; on a terminal through the pager, which ends at once when all fits."""
    from cli.tables import Screen

    console = Screen()
    if not console.is_terminal:
        yield console
        return
    os.environ.setdefault("LESS", "-FRX")
    with console.pager(styles=True):
        yield console


def _words(word: Any) -> str:
    return "-" if word is None else word.value.replace("_", " ")
