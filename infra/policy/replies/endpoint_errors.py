"""Errors for what an OpenAI-compatible endpoint did in the place of a reply, by what may be done.

Each error's `fault` has its bound in `mainspring.status.fates`. Raised by `openai`; caught by
`text_policy` and the activities of replies.
"""

from infra.policy.protocol import ContextFull
from mainspring.errors import EngineBusy, EngineError, EngineFailing
from mainspring.status import FaultKind

REFUSING_AGAIN_S = 30.0
"""Before an endpoint that refuses everything is asked again by the same rollout."""


class PolicyRefused(EngineError):
    """The endpoint refuses the request for good."""


class RequestNotTaken(PolicyRefused):
    """It refuses what this request holds."""

    def __init__(self, message: str, said: str, *, remedy: str) -> None:
        super().__init__(message, remedy=remedy)
        self.said = said
        """The endpoint's own words."""


class ContentFiltered(PolicyRefused):
    """Its content filter refused the prompt or held the reply back: no turn of the policy's, and
    asking again gives the same."""

    def __init__(self, message: str, said: str) -> None:
        super().__init__(
            message,
            remedy="the endpoint's content filter ended it: take an endpoint without one for this "
            "task, or leave the task out",
        )
        self.said = said


class FirstPromptTooLong(PolicyRefused):
    """It takes not even the first prompt of a rollout: nothing was played that could be graded."""


NOT_TAKEN = (
    "where its words are about the context: lower policy.max_new_tokens; where they are about "
    "tokens a minute: raise the account's limit"
)


class PromptNotTaken(ContextFull):
    """It tells that the prompt is too long, or leaves no room for `max_tokens`."""

    def __init__(self, message: str, said: str) -> None:
        super().__init__(message, remedy=NOT_TAKEN)
        self.said = said


class EndpointRefusing(PolicyRefused):
    """It refuses whatever is asked now (key, credits, model, address), and takes requests again
    once a person has put that right: rollouts wait, as for an outage."""

    fault = FaultKind.ENDPOINT_REFUSING
    retry_after_s = REFUSING_AGAIN_S


class EndpointFailing(EngineFailing):
    """It took the request and gave no reply: HTTP 500, a timeout, a connection closed. Asked again,
    it may answer or never do so, and a reply that was lost was paid for."""

    def __init__(
        self, message: str, *, remedy: str = "look at the endpoint's log; is it overloaded?"
    ) -> None:
        super().__init__(message, remedy=remedy)


class StrayRefusal(EndpointFailing):
    """It refused a request of a shape that it takes, and told no reason that lasts."""

    def __init__(self, message: str, said: str, *, of_request: bool) -> None:
        super().__init__(
            message, remedy="it took earlier requests like this one: look at the endpoint's log"
        )
        self.said = said
        self.of_request = of_request
        """Whether its status blames the request."""


class EndpointBusy(EngineBusy):
    """No endpoint answered now: ask again, after `retry_after_s` where one said so."""

    def __init__(self, message: str, retry_after_s: float | None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class ReplyCut(EndpointBusy):
    """HTTP 200 with a reply that the endpoint itself cut off (abort, error): how the policy would
    have ended it is not known, so it is no turn."""

    def __init__(self, message: str) -> None:
        super().__init__(message, None)
        self.remedy = "the endpoint broke the reply off: look at its log"


class EndpointUnreachable(EndpointBusy):
    """No connection: nothing listens there, or the network is down."""

    fault = FaultKind.ENGINE_UNREACHABLE


NoReply = EndpointBusy | EndpointFailing | EndpointRefusing
NO_REPLY = (EndpointBusy, EndpointFailing, EndpointRefusing)
"""After which another endpoint may be asked."""


def of_all(failures: list[NoReply]) -> NoReply:
    """One error for a request to which each endpoint gave one of `failures`."""
    if len(failures) == 1:
        return failures[0]
    message = "; ".join(failure.message for failure in failures)
    busy = [failure for failure in failures if isinstance(failure, EndpointBusy)]
    if busy:
        if all(isinstance(failure, EndpointUnreachable) for failure in failures):
            return EndpointUnreachable(message, None)
        waits = [answer.retry_after_s for answer in busy if answer.retry_after_s is not None]
        return EndpointBusy(message, min(waits, default=None))
    refusing = next(
        (failure for failure in failures if isinstance(failure, EndpointRefusing)), None
    )
    if refusing is not None:
        return EndpointRefusing(message, remedy=refusing.remedy)
    return EndpointFailing(message)
