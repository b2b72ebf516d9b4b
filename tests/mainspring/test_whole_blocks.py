"""Which kernel a process asks MKL for, and what a stamp tells of it."""

import pytest

from mainspring.artifacts.batch_invariance import (
    KEY_BLOCK,
    MKL_VARIABLE,
    environment,
    mkl_branch,
    whole_blocks,
)
from mainspring.artifacts.cpu import AVX512_FLAGS, Cpu, this_cpu
from mainspring.artifacts.stamp import Stamp, machine_stamp

WIDE = Cpu("GenuineIntel", AVX512_FLAGS | {"avx2", "fma"})
NARROW = Cpu("AuthenticAMD", frozenset({"avx2", "fma", "avx512f"}))


def test_the_widest_branch_that_the_processor_has() -> None:
    assert (WIDE.word, NARROW.word) == ("GenuineIntel-avx512", "AuthenticAMD-avx2")
    assert (mkl_branch(WIDE), mkl_branch(NARROW)) == ("AVX512,STRICT", "AVX2,STRICT")
    assert Cpu("", frozenset()).word == "unknown-basic"
    assert environment({}) == {MKL_VARIABLE: mkl_branch(this_cpu())}
    # What a person set stands.
    assert environment({MKL_VARIABLE: "AVX2,STRICT"}) == {MKL_VARIABLE: "AVX2,STRICT"}


def test_this_machines_processor_is_known() -> None:
    assert this_cpu().vendor and "sse2" in this_cpu().flags


@pytest.mark.parametrize(("keys", "whole"), [(0, 0), (1, 512), (512, 512), (513, 1024)])
def test_keys_come_in_whole_blocks(keys: int, whole: int) -> None:
    assert whole_blocks(keys, KEY_BLOCK) == whole


def test_a_stamp_names_what_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MKL_VARIABLE, "AVX2,STRICT")
    machine = machine_stamp("2.0", "AVX2")
    assert machine.mkl_cbwr == "AVX2,STRICT" and machine.cpu == this_cpu().word
    one, other = (
        Stamp(**machine.model_dump(), micro_batch_tokens=tokens, threads_per_rank=1)
        for tokens in (64, 128)
    )
    assert one.differences(one) == []
    assert one.differences(other) == ["micro_batch_tokens 128 instead of 64"]
    assert one.digest != other.digest and len(one.digest) == 12
    assert Stamp.model_validate(one.model_dump()) == one
