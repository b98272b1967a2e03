"""A message trace as text for people: the levels first, then where each of them was found."""

from qim_streams.cli.columns import columns, duration, moment
from qim_streams.spans.rules import trace_id_of
from qim_streams.trace.model import MessageTrace
from qim_streams.trace.rules import parse_message_id

_VERDICTS = {True: "yes", False: "no", None: "unknown"}


def render(trace: MessageTrace) -> str:
    """The trace in a few short tables."""
    parts = [f"message {trace.message_id}  tenant {trace.tenant_id}"]
    if (message_id := parse_message_id(trace.message_id)) is not None:
        parts.append(f"  OpenTelemetry trace {trace_id_of(message_id).hex()}, where it is sampled")
    if trace.message is not None:
        one = trace.message
        parts += [
            f"  {one.conversation_id} #{one.conversation_seq} from {one.sender_id} ({one.sender_device_id})"
            f", {one.body_bytes} bytes, membership version {one.membership_version}"
            f", writer epoch {one.fencing_epoch}",
            f"  committed at {moment(one.committed_at)}",
        ]
    parts += ["", levels(trace)]
    if trace.dispatches:
        parts += ["", _dispatches(trace)]
    if trace.pushes:
        parts += ["", _pushes(trace)]
    parts += [f"note: {note}" for note in trace.notes]
    return "\n".join(parts)


def levels(trace: MessageTrace) -> str:
    """The levels, one line each."""
    return columns(
        ("LEVEL", "REACHED", "AT", "AFTER", "WHERE"),
        [
            (one.name, _VERDICTS[one.reached], moment(one.at_ms), duration(one.after_ms), one.detail)
            for one in trace.levels
        ],
    )


def _dispatches(trace: MessageTrace) -> str:
    committed = trace.message.committed_at if trace.message else 0
    return columns(
        ("SHARD", "OFFSET", "DISPATCHED", "DONE", "RECIPIENTS", "LANES", "W", "COVERED", "ENTRIES"),
        [
            (
                one.shard,
                one.offset,
                duration(one.at_ms - committed),
                duration(None if one.done_at_ms is None else one.done_at_ms - committed),
                one.recipients,
                lane_text(one.lanes),
                one.watermark_min
                if one.watermark_min == one.watermark_max
                else f"{one.watermark_min}..{one.watermark_max}",
                one.covered,
                f"{one.entries_found} of {one.entries_sampled}",
            )
            for one in trace.dispatches
        ],
        indent="  ",
    )


def _pushes(trace: MessageTrace) -> str:
    committed = trace.message.committed_at if trace.message else 0
    return columns(
        ("CONNECTION SHARD", "OFFSET", "PUSHED", "FROM SHARD", "DEVICES"),
        [
            (
                one.connection_shard,
                one.offset,
                duration(one.at_ms - committed),
                one.mailbox_shard,
                one.devices,
            )
            for one in trace.pushes
        ],
        indent="  ",
    )


def lane_text(lanes: tuple[int, ...], shown: int = 8) -> str:
    """Lanes in few characters."""
    if len(lanes) <= shown:
        return ",".join(map(str, lanes))
    return f"{','.join(map(str, lanes[:shown]))},... ({len(lanes)})"
