"""A whole rollout as judges and reward functions are shown it, read from the store.

Invariant: nothing of the verdict. Used by the activities `judging` and `scoring`.
"""

from infra.db.cache import RolloutFacts
from infra.db.database import Database
from infra.db.programs import model_requests
from infra.db.rollouts import judged_turns, rollouts
from mainspring.ids import RolloutId
from mainspring.programs.profiles.choice import is_program
from mainspring.programs.record import BranchKind, RequestState
from mainspring.rewards.seen import SeenRecord, SeenTurn, of_program


async def whole(db: Database, facts: RolloutFacts, rollout: RolloutId, epoch: int) -> SeenRecord:
    """Its turns and its patch. Raises Fenced."""
    patch = await rollouts.get_patch(db, rollout, epoch) or b""
    if is_program(facts.agent_config):
        turns = await _of_program(db, rollout, epoch)
    else:
        turns = await judged_turns.whole(db, rollout, epoch)
    return SeenRecord(facts.task.issue, turns, patch=patch.decode(errors="replace"))


async def _of_program(db: Database, rollout: RolloutId, epoch: int) -> list[SeenTurn]:
    """From the last request of its own turns, which holds those before."""
    own = [
        request.number
        for request in await model_requests.history(db, rollout, epoch)
        if request.kind is BranchKind.MAIN and request.state is RequestState.STORED
    ]
    if not own:
        return []
    _, request, call = await model_requests.read(db, rollout, epoch, own[-1])
    return [] if call is None else of_program(request, call.reply)
