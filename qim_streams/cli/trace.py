"""``qim trace MESSAGE_ID``: a message's way through all levels, from the logs and stores themselves.

Exit code 1 when the message is not found, with what was searched.
"""

import json
import sys
from pathlib import Path

import click

from qim_streams.cli.connect import run
from qim_streams.cli.servers import server_settings, with_partition_counts
from qim_streams.cli.trace_text import render
from qim_streams.errors import ConfigError
from qim_streams.ids import is_text_id
from qim_streams.settings import Settings
from qim_streams.trace.model import MessageTrace
from qim_streams.trace.rules import parse_message_id
from qim_streams.trace.service import TraceHint, trace_message


@click.command()
@click.argument("message_id")
@click.option("--tenant", envvar="QIM_TENANT", help="tenant of the message; default: the local stack's")
@click.option("--conversation", help="its conversation, when known: one partition is searched, not all")
@click.option(
    "--state-dir",
    type=click.Path(path_type=Path),
    help="state directory of the running stack; default: .qim/up, then .qim/demo, then QIM_* variables",
)
@click.option("--json", "as_json", is_flag=True, help="as JSON")
def trace(
    message_id: str, tenant: str | None, conversation: str | None, state_dir: Path | None, as_json: bool
) -> None:
    """Show where MESSAGE_ID (32 hex digits, as in SEND_ACK) is at each level, and when it got there."""
    settings, local_tenant = server_settings(state_dir)
    wanted = parse_message_id(message_id)
    if wanted is None:
        raise ConfigError("MESSAGE_ID: must be 32 hex digits, as SEND_ACK and `qim send` give it")
    tenant = tenant or local_tenant
    if not is_text_id(tenant):
        raise ConfigError("--tenant: give the tenant of the message")
    if conversation is not None and not is_text_id(conversation):
        raise ConfigError("--conversation: is not an id")
    found = run(_trace(settings, tenant, wanted, conversation))
    click.echo(json.dumps(found.to_json(), indent=2) if as_json else render(found))
    if not found.found:
        sys.exit(1)


async def _trace(
    settings: Settings, tenant: str, message_id: bytes, conversation: str | None
) -> MessageTrace:
    from qim_streams.roles.tracing import tracing
    from qim_streams.trace.kafka_log import KafkaLogReader

    log = KafkaLogReader(settings.kafka)
    try:
        settings = await with_partition_counts(settings, log)
    finally:
        await log.close()
    async with tracing(settings) as deps:
        return await trace_message(deps, tenant, message_id, TraceHint(conversation), progress=_progress)


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        click.echo(f"searching {text}", err=True)
