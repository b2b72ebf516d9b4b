"""The query of a search: words, phrases and conditions; what is wrong is named."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mainspring.errors import UsageError
from mainspring.trajectories.search_query import (
    SearchCondition,
    SearchKey,
    Words,
    parse,
    snippet,
    words_of,
)


def test_words_phrases_and_conditions_are_told_apart() -> None:
    query = parse('Foo: -bar "No module" a.py beg* exit:1 version:>=10 -verdict:resolved -exit:>2')
    assert query.words == (
        Words("foo"),
        Words("bar", is_negated=True),
        Words("no module"),
        Words("a py"),
        Words("beg", is_beginning=True),
    )
    assert query.conditions == (
        SearchCondition(SearchKey.EXIT, "=", 1),
        SearchCondition(SearchKey.VERSION, ">=", 10),
        SearchCondition(SearchKey.VERDICT, "!=", "resolved"),
        SearchCondition(SearchKey.EXIT, "<=", 2),
    )
    assert parse('task:"a b" std::vector --no-deps "exit:1"').words == (
        Words("std vector"),
        Words("no deps"),
        Words("exit 1"),
    )


@pytest.mark.parametrize(
    ("text", "wrong", "remedy"),
    [
        ("  ", "the query is empty", "for example"),
        ("verdit:resolved", "'verdit' is no condition of a search: did you mean verdict", "quotes"),
        ("verdict:resolvd", "'resolvd' is no value of verdict: did you mean resolved", "one of"),
        ("part:diff", "'diff' is no value of part", "thought, command, output, patch, tests"),
        ("https://a.b", "'https' is no condition", "put text with a colon in quotes"),
        ("exit:one", "exit:one has no number", "exit:>=1"),
        ("->", "'->' has no letter and no digit", "leave it out"),
        ('"no end', "a quote without its partner", "for example"),
        ("a " * 21, "21 words and conditions, and may have 20", "a phrase counts as one"),
        ("a" * 501, "501 characters, and may have 500", "a few words"),
    ],
)
def test_a_wrong_query_is_refused_with_what_to_write(text: str, wrong: str, remedy: str) -> None:
    with pytest.raises(UsageError) as refused:
        parse(text)
    assert wrong in refused.value.message and remedy in refused.value.remedy


def test_an_excerpt_has_its_words_marked_whatever_stands_between_them() -> None:
    text = "x" * 300 + "\nE   No  module-NAMED\n'attrs' " + "y " * 300
    before, found, after = snippet(text, [Words("absent"), Words("no module named")], 60)
    assert found == "No module-NAMED" and before.endswith("E ") and before.startswith("...x")
    assert after.startswith(" 'attrs' y") and after.endswith("...")
    assert snippet("prefixed fix", [Words("fix")]) == ("prefixed ", "fix", "")
    assert snippet("fixed", [Words("fix", is_beginning=True)]) == ("", "fix", "ed")
    assert snippet("nothing of it", [Words("absent")]) == ("", "", "nothing of it")


@given(st.text(max_size=80))
def test_any_text_is_a_query_or_is_refused(text: str) -> None:
    try:
        query = parse(text)
    except UsageError:
        return
    assert query.words or query.conditions
    assert all(words_of(each.text) == each.text for each in query.words)


@given(st.text(max_size=40), st.text(min_size=1, max_size=20), st.text(max_size=40))
def test_what_is_marked_is_what_was_asked_for(before: str, middle: str, after: str) -> None:
    words = words_of(middle)
    if not words or not words.isascii():
        return
    _, found, _ = snippet(f"{before} {middle} {after}", [Words(words)])
    assert words_of(found) == words
