"""How training fails: one class for each way, with the campaign, step or checkpoint in its message.

Pure, so that code that types errors for Temporal needs neither torch nor ray. Two more ends of
training live where others need them too: `mainspring.trajectories.turns.BrokenTrajectory` and
`mainspring.errors.ModelError`.
"""

from typing import NoReturn

from mainspring.algorithms.gap import LogprobGap
from mainspring.artifacts.stamp import Stamp
from mainspring.errors import ServiceError, WorkFailed
from mainspring.status import FaultKind
from mainspring.words.causes import cause_of, is_out_of_memory


class LogprobGapTooLarge(WorkFailed):
    """Served and recomputed log-probs of the same weights differ beyond the bounds of
    [trainer.gap]. Nothing was trained. The batch is fixed, so another attempt finds the same."""

    fault = FaultKind.LOGPROB_GAP


class NonFiniteStep(WorkFailed):
    """The gradient of a step is infinite or not a number. The campaign's weights stay those of the
    version before it; another attempt finds the same."""

    fault = FaultKind.NON_FINITE_STEP


class NothingToTrain(WorkFailed):
    """Nothing could be trained of a step's batches, one after the other, as often as the campaign
    allows. The weights are those before the step."""

    fault = FaultKind.CONFIG_UNUSABLE


class AlgorithmBroken(WorkFailed):
    """An advantage, group filter or loss of one's own raised, or returned something else than its
    protocol has. Nothing was trained; another attempt finds the same."""

    fault = FaultKind.CONFIG_UNUSABLE


class CheckpointUnusable(WorkFailed):
    """A checkpoint or base model is missing, damaged, or of another campaign. It was not loaded."""

    fault = FaultKind.CHECKPOINT_UNUSABLE


class DeviceMissing(ServiceError):
    """Fewer devices of the configured kind exist than the campaign's ranks need."""

    fault = FaultKind.DEVICE_MISSING


class StampDiffers(ServiceError):
    """A reproducible campaign's trainer would compute other bits than the one before it. Nothing
    was trained."""

    fault = FaultKind.STAMP_DIFFERS


class TrainerLost(ServiceError):
    """A rank, or the Ray cluster under the ranks, ended. What was computed since the last
    checkpoint is lost; another attempt computes it again."""

    fault = FaultKind.TRAINER_LOST


class RankOutOfMemory(TrainerLost):
    """A rank had no memory left, or the kernel ended it for lack of memory."""

    fault = FaultKind.OUT_OF_MEMORY


class RankFailed(TrainerLost):
    """A rank raised what is no MainspringError. All ranks were stopped."""

    fault = FaultKind.UNEXPECTED


class BatchFileDamaged(ServiceError):
    """The file through which ranks get a step's batch is missing, truncated or altered. Nothing was
    trained; another attempt writes it again from the store."""

    fault = FaultKind.BATCH_FILE_DAMAGED


class SendingFailed(ServiceError):
    """Weights did not reach the engines over a process group: one did not join, or was lost. Their
    files are whole, and the engines load these."""

    fault = FaultKind.ENGINE_UNREACHABLE


class TrainerFenced(ServiceError):
    """A newer trainer has taken the campaign over: this one's work does not count, and the newer
    one does the attempt again."""

    fault = FaultKind.TRAINER_FENCED


def algorithm_broken(what: str, problem: str) -> AlgorithmBroken:
    """`what`: the field of [trainer] with its value; `problem`: what it did."""
    return AlgorithmBroken(
        f"{what} {problem}",
        remedy="correct it where workers and trainer run, then start the campaign again",
    )


def raise_broken(what: str, error: Exception) -> NoReturn:
    """Raise an extension's error as AlgorithmBroken; lack of memory as it is: it may pass."""
    if is_out_of_memory(error):
        raise error
    raise algorithm_broken(what, f"raised {cause_of(error)}") from error


def stamp_differs(
    campaign: str, version: int, recorded: Stamp, differences: list[str]
) -> StampDiffers:
    """`recorded`: of the version; `differences`: what this trainer has instead."""
    return StampDiffers(
        f"campaign {campaign}: its policy version {version} was made by a trainer on "
        f"{recorded.cpu} with torch {recorded.torch}; this trainer would compute other bits: "
        f"{', '.join(differences)}",
        remedy="start the trainer where these are as they were, then start the campaign again: it "
        'resumes where it ended; or start a new campaign with schedule = "fastest"',
    )


def step_differs(campaign: str, step: int, *, is_batch: bool) -> StampDiffers:
    """Error of a step that was trained again, in a reproducible campaign."""
    what = "batch" if is_batch else "gradient"
    return StampDiffers(
        f"campaign {campaign}: step {step}, trained again because its version has no checkpoint, "
        f"had another {what} than at first",
        remedy="compare the stored fingerprints with `mainspring campaign fingerprint "
        f"{campaign}`; start a new campaign with trainer.checkpoint_every = 1",
    )


def nothing_to_train(campaign: str, step: int, reason: str, num_groups: int) -> NothingToTrain:
    """`num_groups`: replaced for this step before."""
    return NothingToTrain(
        f"campaign {campaign}, step {step}: nothing can be trained of its batch, nor of "
        f"{num_groups} groups before that were replaced: {reason}",
        remedy="raise the limit that masks them (agent.step_limit, policy.max_context, "
        "agent.rollout_timeout_s, trainer.max_token_staleness) in a new campaign, or look at the "
        f"rollouts with `mainspring rollout list {campaign}`",
    )


def nothing_to_retrain(campaign: str, step: int, reason: str) -> NothingToTrain:
    return NothingToTrain(
        f"campaign {campaign}, step {step}: nothing can be trained of its stored batch: {reason}",
        remedy="retrain under another name with a setting that masks less, or with --order that "
        "leaves this batch out",
    )


def gap_too_large(
    campaign: str, where: str, version: int, gap: LogprobGap, beyond: list[str]
) -> LogprobGapTooLarge:
    """`where`: the step or the evaluation; `beyond`: the figures that exceed their bounds."""
    return LogprobGapTooLarge(
        f"campaign {campaign}, {where}: served and recomputed log-probs of policy version "
        f"{version} differ over {gap.num_tokens} tokens: {', '.join(beyond)}",
        remedy="compare weights, dtype and attention backend of the engines with the campaign's "
        '(a bfloat16 engine needs policy.dtype = "bfloat16"; bounds are in [trainer.gap]), then '
        f"drop the batch with `mainspring campaign drop-batch {campaign}`",
    )
