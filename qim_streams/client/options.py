"""How a client behaves: bounds, delays and choices, in one place.

Spec: §7.
"""

from dataclasses import dataclass

from qim_streams import limits
from qim_streams.errors import ConfigError

FRAME_REST_BYTES = 1_024  # of a SEND_MESSAGE besides the body: ids and names


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """How a device behaves; the defaults suit an interactive client.

    `first_sync`: what a device without a cursor gets: ``now`` (only what comes) or ``mailbox`` (all that
    its mailbox still holds). `platform`: ios, web, ...; tenants may allow one device of each.
    `checkpoint_*`: a pull moves the cursor after so many events or so much time online; 0 = never.
    `echo_own`: messages sent here are shown as events too.
    """

    first_sync: str = "now"
    platform: str = ""
    echo_own: bool = True
    inflight_max: int = 128
    per_conversation_inflight: int = 1
    waiting_max: int = 10_000
    answer_ms: int = 15_000
    gap_grace_ms: int = 300
    checkpoint_events: int = 500
    checkpoint_interval_ms: int = 60_000
    pull_entries: int = limits.PULL_ENTRIES_MAX
    pull_bytes: int = limits.PULL_BYTES_MAX

    def __post_init__(self) -> None:
        if self.first_sync not in ("now", "mailbox"):
            raise ConfigError(f"first_sync is {self.first_sync!r}; use now or mailbox")


@dataclass(frozen=True, slots=True)
class ClientOptions(SessionOptions):
    """What the socket side adds.

    `encoding`: msgpack or json. `events_max`: deliveries that wait for `events()` or for the store; more
    stop the reading of the socket. `follow_endpoint`: connect next time to the endpoint that the server
    prefers, if it is on the same host or on one of `endpoint_hosts`, and never from TLS to none.
    `token_attempts`: fresh tokens to try when one is refused. `history_*`: see `rebuild`; a page, how many
    conversations at a time, how many messages of one, and how long to try in vain before a gap is marked.
    """

    encoding: str = "msgpack"
    connect_timeout_s: float = 10.0
    close_timeout_s: float = 2.0
    tick_s: float = 0.2
    backoff_base_ms: int = 250
    backoff_cap_ms: int = 30_000
    events_max: int = 10_000
    follow_endpoint: bool = True
    endpoint_hosts: tuple[str, ...] = ()
    token_attempts: int = 3
    history_page: int = 200
    history_readers: int = 4
    history_messages_max: int = 100_000
    history_patience_s: float = 120.0

    def __post_init__(self) -> None:
        SessionOptions.__post_init__(self)
        if self.encoding not in ("msgpack", "json"):
            raise ConfigError(f"encoding is {self.encoding!r}; use msgpack or json")


def body_bytes_max(options: ClientOptions) -> int:
    """The largest body that fits into a frame; the server's own limit is usually lower.

    A larger frame would end the connection, and with a store the next ones, too.
    """
    room = limits.FRAME_BYTES_MAX - FRAME_REST_BYTES
    return room if options.encoding == "msgpack" else room * 3 // 4
