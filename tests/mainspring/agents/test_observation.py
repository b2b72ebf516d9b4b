"""Observations for every kind of output a command can have."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.agents.observation import render_format_error, render_observation


def observe(
    output: bytes, *, returncode: int = 0, limit: int = 1000, turns_left: int | None = None
) -> str:
    return render_observation(
        returncode,
        output,
        timed_out=False,
        timeout_s=60.0,
        limit_chars=limit,
        turns_left=turns_left,
    )


def test_short_outputs_stand_whole() -> None:
    assert observe(b"a\n  b\n", returncode=3) == (
        "<returncode>3</returncode>\n<output>\na\n  b\n</output>"
    )
    assert observe(b"") == "<returncode>0</returncode>\n<output>\n</output>"


def test_an_unfinished_last_line_is_finished() -> None:
    assert observe(b"a").endswith("<output>\na\n</output>")


def test_output_is_never_read_as_a_template() -> None:
    assert "{{ returncode }}{% if %}" in observe(b"{{ returncode }}{% if %}")


@given(st.text(alphabet="ab\n", min_size=201, max_size=600))
def test_long_outputs_show_head_and_tail_and_count_the_rest(text: str) -> None:
    text += "\n"
    shown = observe(text.encode(), limit=100)
    assert f"<output_head>\n{text[:50]}\n</output_head>" in shown
    assert f"<output_tail>\n{text[-50:]}</output_tail>" in shown
    assert f"<elided_chars>{len(text) - 100}</elided_chars>" in shown
    assert "<warning>" in shown and "<output>" not in shown


def test_the_limit_itself_is_not_long() -> None:
    assert "<warning>" not in observe(b"x" * 99 + b"\n", limit=100)


@given(st.binary(max_size=300))
def test_any_bytes_give_text_that_can_be_stored(output: bytes) -> None:
    shown = observe(output)
    assert "\0" not in shown
    shown.encode()


def test_a_timeout_is_said_with_its_length() -> None:
    shown = render_observation(
        -1, b"half\n", timed_out=True, timeout_s=60.0, limit_chars=1000, turns_left=None
    )
    assert "did not end within 60 s" in shown
    assert "<output>\nhalf\n</output>" in shown


@pytest.mark.parametrize(
    ("turns_left", "ending"),
    [
        (5, "5 turns are left."),
        (1, "last turn: submit now."),
        (0, "</output>"),
        (None, "</output>"),
    ],
)
def test_the_reminder_of_turns_left(turns_left: int | None, ending: str) -> None:
    assert observe(b"x", turns_left=turns_left).endswith(ending)


def test_a_format_error_says_what_was_found_and_how_to_go_on() -> None:
    shown = render_format_error(2, cut_off=False)
    assert "2 bash blocks" in shown
    assert "```bash\n" in shown


def test_a_reply_that_was_cut_off_is_told_so() -> None:
    shown = render_format_error(0, cut_off=True)
    assert "cut off" in shown and "nothing was run" in shown
    assert "0 bash blocks" not in shown
