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
        ([call(1, None, 0)], "call 1: expected call 0"),
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
