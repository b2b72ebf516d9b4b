"""Section [agent.prompts]: the texts of an agent, as Jinja2 templates."""

from mainspring.config.section import Section


class PromptsConfig(Section):
    """Texts that are set take the place of the agent's own. Each is filled with an example before
    anything starts."""

    file: str | None = None
    """TOML file with any of the fields below, absolute or relative to the campaign file. Fields
    that stand beside it override it. Its texts are stored with the campaign."""
    system: str | None = None
    """Instructions: the first message. Fields: issue, workdir, task_id, metadata (a table of the
    task's row), step_limit, timeout_s (of a command), sentinel (what the submit command prints),
    tools (a list: name, description and takes of each), tags (those of [agent.react])."""
    task: str | None = None
    """The task: the second message. Fields as those of `system`."""
    observation: str | None = None
    """The message after a command. Fields: returncode, output, num_elided (number of characters
    that are left out; then head and tail have the rest), head, tail, timed_out, timeout_s,
    turns_left (none: it is not told), sentinel."""
    format_error: str | None = None
    """The message after a reply that breaks the agent's rules. Fields: num_found (commands in it),
    reason (empty where their number tells it), cut_off (whether it reached its longest length),
    sentinel."""
