"""The agent's view of its command: return code and output, long ones cut in the middle.

Pure and deterministic: the same execution gives the same text, so a restored rollout continues
with the same tokens. The templates here are the bash agent's; [agent.prompts] may have others.
Anyone may import it.
"""

from mainspring.agents.templates import render

OBSERVATION = """\
<returncode>{{ returncode }}</returncode>
{% if timed_out -%}
<timeout>The command did not end within {{ timeout_s }} s and was killed with everything it \
started.</timeout>
{% endif -%}
{% if num_elided -%}
<warning>
The output is too long to be shown whole. Ask for less: select lines with head, tail, sed -n or \
grep, or redirect to a file and read parts of it.
</warning>
<output_head>
{{ head }}
</output_head>
<elided_chars>{{ num_elided }}</elided_chars>
<output_tail>
{{ tail }}</output_tail>
{%- else -%}
<output>
{{ output }}</output>
{%- endif -%}
{% if turns_left == 1 %}

This is your last turn: submit now.
{%- elif turns_left is not none and turns_left > 1 %}

{{ turns_left }} turns are left.
{%- endif -%}
"""

ACTED = """\
{% if timed_out -%}
The action did not end within {{ timeout_s }} s.
{%- elif num_elided -%}
{{ head }}
[{{ num_elided }} characters are left out]
{{ tail.rstrip("\n") }}
{%- elif output -%}
{{ output.rstrip("\n") }}
{%- else -%}
(nothing)
{%- endif -%}
"""
"""After a step that has a reward: an environment's own words, and nothing of a shell."""

_NOT_ONE = """\
Your reply had {{ num_found }} bash blocks; it must have exactly one, so nothing was run.
Write a THOUGHT, then one block with one command:

```bash
your command
```

When you are done, that command is: echo {{ sentinel }}"""

_CUT_OFF = """\
Your reply reached the longest length allowed and was cut off before its command was complete, so \
nothing was run. Be brief: a short THOUGHT, then one block with one command:

```bash
your command
```

Write a large file in several commands."""


_NOT_CLEAR = """\
It is not clear where your bash block ends: {{ reason }}, so nothing was run. Close each heredoc \
with its own line and each quote, before the line of ``` that ends the block. Write lines of ``` \
into a file with a heredoc, not inside quotes."""

FORMAT_ERROR = "".join(
    [
        *("{% if cut_off %}", _CUT_OFF, "{% elif reason %}", _NOT_CLEAR),
        *("{% else %}", _NOT_ONE, "{% endif %}"),
    ]
)


def render_observation(
    returncode: int,
    output: bytes,
    *,
    timed_out: bool,
    timeout_s: float,
    limit_chars: int,
    turns_left: int | None,
    template: str = OBSERVATION,
) -> str:
    """The message after a command. `turns_left` None leaves the reminder out."""
    # A NUL cannot be stored as text in Postgres, and no tokenizer needs it.
    text = output.decode("utf-8", errors="replace").replace("\0", "\ufffd")
    if text and not text.endswith("\n"):
        text += "\n"
    num_elided = 0
    head = tail = ""
    if len(text) > limit_chars:
        half = limit_chars // 2
        head, tail = text[:half], text[len(text) - half :]
        num_elided = len(text) - len(head) - len(tail)
    return render(
        template,
        returncode=returncode,
        timed_out=timed_out,
        timeout_s=f"{timeout_s:g}",
        output=text,
        num_elided=num_elided,
        head=head,
        tail=tail,
        turns_left=turns_left,
    )


def render_format_error(
    num_found: int, *, cut_off: bool, reason: str = "", template: str = FORMAT_ERROR
) -> str:
    """The message after a reply that was not exactly one command. `cut_off`: it was longer than a
    reply may be, which is another mistake than its form; `reason`: what was not clear."""
    return render(template, num_found=num_found, cut_off=cut_off, reason=reason)
