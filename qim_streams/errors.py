"""The error tree and the one table that says what a process does about each class.

::

    QimError
    ├── ConfigError             a setting, file or argument is wrong; names it and the remedy
    ├── ProtocolError           a client's frame is wrong (carries a wire code, see ``wire.codes``)
    ├── AdmissionRefused        a rule or limit says no; carries code name and retry_after_ms
    ├── SyncVerdict             CURSOR_INVALID, CURSOR_EXPIRED, CURSOR_REBASED, SYNC_INCOMPLETE
    ├── StoreError              a store did not do as asked; `outcome` says what is known
    │   ├── StoreUnavailable    it may work later
    │   │   ├── EntryRefused    a mailbox does not take its entry: nothing moved, tried again
    │   │   └── EndpointUnavailable  an application's endpoint did not take what it was told: again, later
    │   └── LogAppendError      records were not acknowledged by the log
    │       └── ProducerFatalError  the producer is broken for good
    ├── ClientStopped           a client gave up for good; `outcome` of what it was asked to do
    ├── FencedError             an owner with a newer epoch exists: stop serving this resource
    ├── RecordError             bytes of a log record cannot be understood (a poison record)
    │   └── RecordTooLargeError a record to append is over the limit; nothing was appended
    └── InvariantViolation      something that cannot happen did: stop and ask a person

Every class has a row in `POLICY`; a test walks the tree and fails on a class without one.
"""

from enum import Enum


class Outcome(Enum):
    """What is known about a write that raised."""

    NOT_APPLIED = "not_applied"
    APPLIED = "applied"
    UNKNOWN = "unknown"


class Policy(Enum):
    """What a stage does when a batch raises."""

    RETRY = "retry"
    DEAD_LETTER = "dead_letter"
    FENCE = "fence"
    CRASH = "crash"


class QimError(Exception):
    """Root of everything this project raises on purpose."""


class ConfigError(QimError):
    """A setting, file or command line is wrong. The text names the field and the remedy."""


class ProtocolError(QimError):
    """A peer broke the protocol. `code` is a name of the table in ``wire.codes``.

    `rid` is the request's id when it could be read, so that the answer can name it.
    """

    def __init__(self, code: str, detail: str, *, field: str | None = None, rid: int | None = None) -> None:
        super().__init__(f"{code}: {detail}")
        self.code, self.detail, self.field, self.rid = code, detail, field, rid


class AdmissionRefused(QimError):
    """A send or change was refused before anything happened. `retry_after_ms` is None when final."""

    def __init__(self, code: str, detail: str, *, retry_after_ms: int | None = None) -> None:
        super().__init__(f"{code}: {detail}")
        self.code, self.detail, self.retry_after_ms = code, detail, retry_after_ms


class SyncVerdict(QimError):
    """A cursor or sync request got a verdict other than OK. `fields` go into the ERROR frame."""

    def __init__(self, code: str, detail: str, **fields: object) -> None:
        super().__init__(f"{code}: {detail}")
        self.code, self.detail, self.fields = code, detail, fields


class StoreError(QimError):
    """A store refused or failed; `outcome` is UNKNOWN unless the adapter knows better."""

    def __init__(self, detail: str, outcome: Outcome = Outcome.UNKNOWN) -> None:
        super().__init__(detail)
        self.outcome = outcome


class StoreUnavailable(StoreError):
    """The store cannot be reached or is loading; the same call may work later."""


class EntryRefused(StoreUnavailable):
    """The store is there and refuses this write of mailbox entries: W did not move, it is tried again."""


class EndpointUnavailable(StoreUnavailable):
    """An application's endpoint did not answer, or not yet: what it was told may have arrived."""

    def __init__(self, what: str) -> None:
        super().__init__(what, Outcome.UNKNOWN)


class LogAppendError(StoreError):
    """Records handed to the log were not all acknowledged; some may have been appended (`outcome`)."""


class ProducerFatalError(LogAppendError):
    """The log producer cannot go on. The process exits; a new producer starts with a new one."""


class ClientStopped(QimError):
    """A client was closed, or the server told it not to come back (`code` of ``wire.codes``)."""

    def __init__(self, code: str, detail: str, outcome: Outcome = Outcome.UNKNOWN) -> None:
        super().__init__(f"{code}: {detail}" if detail else code)
        self.code, self.detail, self.outcome = code, detail, outcome


class FencedError(QimError):
    """A newer epoch owns the resource. Nothing was written."""

    def __init__(self, resource: str, epoch: int, current: int | None = None) -> None:
        super().__init__(f"{resource}: epoch {epoch} is fenced (current {current})")
        self.resource, self.epoch, self.current = resource, epoch, current


class RecordError(QimError):
    """Bytes of a record cannot be decoded or contradict the contract: a poison record."""


class RecordTooLargeError(RecordError):
    """A record to append is over the size limit. Nothing of the call was appended."""


class InvariantViolation(QimError):
    """A promise of the contract is about to break. The process stops; an operator is told."""


POLICY: dict[type[QimError], Policy] = {
    QimError: Policy.CRASH,
    ConfigError: Policy.CRASH,
    ProtocolError: Policy.DEAD_LETTER,
    AdmissionRefused: Policy.DEAD_LETTER,
    SyncVerdict: Policy.DEAD_LETTER,
    StoreError: Policy.CRASH,
    StoreUnavailable: Policy.RETRY,
    EntryRefused: Policy.RETRY,
    EndpointUnavailable: Policy.RETRY,
    LogAppendError: Policy.CRASH,
    ProducerFatalError: Policy.CRASH,
    ClientStopped: Policy.CRASH,
    FencedError: Policy.FENCE,
    RecordError: Policy.DEAD_LETTER,
    RecordTooLargeError: Policy.DEAD_LETTER,
    InvariantViolation: Policy.CRASH,
}


def policy_of(error: BaseException) -> Policy:
    """The row of the nearest class with one; CRASH for anything that is not ours."""
    for cls in type(error).__mro__:
        if cls in POLICY:
            return POLICY[cls]
    return Policy.CRASH
