import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.model.packing import pack
from trainer.step.schedule import copy_scale, lr_scale, warm_start_scale


@given(
    lengths=st.lists(st.integers(2, 500), max_size=60),
    max_tokens=st.integers(64, 2000),
    num_ranks=st.integers(1, 5),
)
def test_packing_keeps_its_promises(lengths, max_tokens, num_ranks):
    ranks = pack(lengths, max_tokens=max_tokens, num_ranks=num_ranks)
    assert len(ranks) == num_ranks
    assert len({len(batches) for batches in ranks}) == 1
    batches = [batch for rank in ranks for batch in rank]
    assert sorted(index for batch in batches for index in batch) == list(range(len(lengths)))
    for batch in batches:
        if len(batch) > 1:
            assert sum(lengths[i] for i in batch) <= max_tokens
    assert ranks == pack(lengths, max_tokens=max_tokens, num_ranks=num_ranks)


def test_short_sequences_fill_what_long_ones_leave():
    assert pack([10, 90, 12, 88], max_tokens=100) == [[[1, 0], [3, 2]]]


def test_ranks_get_equal_costs_not_equal_lengths():
    """Of attention a long sequence costs more than several short ones of the same length."""
    ranks = pack([40_000] + [10_000] * 5, max_tokens=20_000, num_ranks=2)
    assert [len(rank) for rank in ranks] == [2, 2]
    longest = next(rank for rank in ranks if [0] in rank)
    assert sum(len(batch) for batch in longest) == 2


def test_one_micro_batch_is_cut_for_two_ranks():
    assert pack([5, 5, 5, 5], max_tokens=100, num_ranks=2) == [[[0, 2]], [[1, 3]]]


def test_lr_scale_warms_up_and_falls():
    scales = [lr_scale(step, 100, 3, 0.3) for step in range(100)]
    assert scales[0] == pytest.approx(1 / 3)
    assert scales[2] == pytest.approx(0.3 + 0.7 * 0.98)
    assert scales[2:] == sorted(scales[2:], reverse=True)
    assert lr_scale(100, 100, 3, 0.3) == pytest.approx(0.3)
    assert lr_scale(0, 10, 0, 1.0) == 1.0


def test_warm_start_scale():
    assert warm_start_scale(0, 500) == copy_scale(0) == pytest.approx(1 / 20)
    assert warm_start_scale(250, 500) == copy_scale(250) == 1.0
    assert warm_start_scale(375, 500) == pytest.approx(0.5)
    assert warm_start_scale(499, 500) == pytest.approx(0.05)
