"""A rollout's calls as a tree: branches, and the sample of each."""

from dataclasses import replace

import numpy as np
import pytest

from mainspring.trajectories.samples import NOT_SAMPLED, digest, samples_of, without_tokens_before
from mainspring.trajectories.tree import branches, check_tree, path_to
from mainspring.trajectories.turns import BrokenTrajectory, Call, VersionSpan


def call(number: int, parent: int | None, start: int) -> Call:
    """Three tokens of prompt, two of reply; token ids name their call."""
    prompt, reply = (10 * number + 1,) * 3, (10 * number + 2,) * 2
    spans = (VersionSpan(number, 0, 2),)
    return Call(number, parent, start, prompt, reply, (-0.5, -0.25), spans, "x", "stop")


#   0 - 1 - 3
#     `- 2
#   4
TREE = [call(0, None, 0), call(1, 0, 5), call(2, 0, 5), call(3, 1, 10), call(4, None, 0)]


def test_each_leaf_ends_a_branch() -> None:
    check_tree("r", TREE)
    found = [[each.number for each in path] for path in branches(TREE)]
    assert found == [[0, 2], [0, 1, 3], [4]]
    assert [each.number for each in path_to(TREE, 3)] == [0, 1, 3]
    assert path_to(TREE, None) == () and branches([]) == []


def test_shared_tokens_are_trained_once_and_context_elsewhere() -> None:
    first, second, alone = samples_of("r", TREE, 0.5)
    assert [each.branch for each in (first, second, alone)] == [2, 3, 4]
    assert first.token_ids.tolist() == [1, 1, 1, 2, 2, 21, 21, 21, 22, 22]
    assert first.action_mask.tolist() == [False, False, False, True, True] * 2
    assert second.token_ids.tolist()[:5] == first.token_ids.tolist()[:5]
    assert second.action_mask.tolist() == [False] * 5 + [False, False, False, True, True] * 2
    assert second.versions.tolist()[:5] == [NOT_SAMPLED] * 5
    assert alone.versions.tolist() == [NOT_SAMPLED] * 3 + [4, 4]
    trained = sum(each.num_action_tokens for each in (first, second, alone))
    assert trained == sum(len(each.completion_ids) for each in TREE)
    for each in (first, second, alone):
        expected = np.where(each.action_mask, np.float32(0.5), 0)
        assert each.advantages.tolist() == expected.tolist() and each.carries_advantage
        assert (each.logprobs != 0).tolist() == each.action_mask.tolist()


def test_a_line_is_a_tree_with_one_branch() -> None:
    [sample] = samples_of("r", [call(0, None, 0), call(1, 0, 5)], 0.0)
    assert sample.branch == 1 and not sample.carries_advantage
    old = without_tokens_before(replace(sample, advantages=sample.action_mask * 1.0), 1)
    assert np.flatnonzero(old.advantages).tolist() == [8, 9]
    assert digest([sample]) != digest([replace(sample, branch=0)])
    assert digest([sample]) != digest([replace(sample, advantages=sample.advantages + 1)])


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ([call(1, None, 0), call(1, None, 0)], "call 1: comes after call 1"),
        ([call(2, None, 0), call(1, None, 0)], "call 1: comes after call 2"),
        ([call(-1, None, 0)], "call -1: comes after call -1"),
        ([call(0, None, 0), call(2, 1, 5)], "its parent is call 1, which is not before"),
        ([call(0, 0, 0)], "its parent is call 0, which is not before"),
        ([call(0, None, 0), call(1, 2, 5)], "its parent is call 2"),
        ([call(0, None, 0), call(1, -1, 5)], "its parent is call -1"),
        ([call(0, None, 0), call(1, 0, 6)], "starts at token 6, expected 5"),
        ([call(0, None, 0), call(1, None, 5)], "starts at token 5, expected 0"),
    ],
)
def test_what_does_not_line_up_names_its_call(broken: list[Call], message: str) -> None:
    with pytest.raises(BrokenTrajectory, match=message):
        samples_of("r", broken)


#   1 - 4 - 9
#     `- 6
#   12
GAPS = [call(1, None, 0), call(4, 1, 5), call(6, 1, 5), call(9, 4, 10), call(12, None, 0)]


def test_numbers_may_have_gaps() -> None:
    check_tree("r", GAPS)
    found = [[each.number for each in path] for path in branches(GAPS)]
    assert found == [[1, 6], [1, 4, 9], [12]]
    assert [each.number for each in path_to(GAPS, 9)] == [1, 4, 9]
    for missing in (0, 5, 13):
        with pytest.raises(BrokenTrajectory, match=f"call {missing} is not there"):
            path_to(GAPS, missing)


def test_calls_that_are_not_trained_are_context_or_left_out() -> None:
    by_branch = {each.branch: each for each in samples_of("r", GAPS, 1.0, trained={4, 12})}
    assert list(by_branch) == [4, 12]
    assert by_branch[4].token_ids.tolist() == [11, 11, 11, 12, 12, 41, 41, 41, 42, 42]
    assert np.flatnonzero(by_branch[4].action_mask).tolist() == [8, 9]
    assert by_branch[4].versions.tolist() == [NOT_SAMPLED] * 8 + [4, 4]
    assert np.flatnonzero(by_branch[4].logprobs).tolist() == [8, 9]
    [shared] = samples_of("r", GAPS, trained=[1])
    assert shared.branch == 1 and len(shared.token_ids) == 5
    first, second = samples_of("r", GAPS, trained=range(1, 10))
    assert [first.branch, second.branch] == [6, 9]
    assert first.num_action_tokens + second.num_action_tokens == 8
    assert samples_of("r", GAPS, trained=()) == []
    assert digest(samples_of("r", GAPS, trained=range(13))) == digest(samples_of("r", GAPS))


def test_a_reply_in_text_hinders_only_the_samples_that_hold_it() -> None:
    told = replace(call(1, None, 0), completion_ids=(), logprobs=(), spans=())
    calls = [call(0, None, 0), told, call(2, 1, 3)]
    [sample] = samples_of("r", calls, trained={0})
    assert sample.branch == 0
    with pytest.raises(BrokenTrajectory, match="call 1: its reply came as text"):
        samples_of("r", calls, trained={0, 2})
