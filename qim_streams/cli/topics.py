"""``qim topics apply|check|list``: the topics of ``topics.yaml`` on the broker of the settings.

Exit code 1 when something differs or cannot be done, with one line per problem.
"""

import json
import sys
from dataclasses import asdict
from pathlib import Path

import click

from qim_streams.cli.columns import columns, span
from qim_streams.cli.servers import server_settings
from qim_streams.settings import Settings, load_settings
from qim_streams.streaming import topics as declared
from qim_streams.streaming.topics import ResolvedTopic, TopicSet

_BROKERS = click.option("--brokers", help="bootstrap servers instead of QIM_BROKERS")
_STATE_DIR = click.option(
    "--state-dir", type=click.Path(path_type=Path), help="of a stack that runs on this machine: its broker"
)


def _resolved(
    brokers: str | None, state_dir: Path | None = None
) -> tuple[Settings, TopicSet, dict[str, ResolvedTopic]]:
    """What is declared for the settings. Only who names a local stack is told of it: elsewhere its broker
    or its counts beside somebody's own settings would make topics that nobody wants."""
    if state_dir is not None and brokers is not None:
        raise click.UsageError("--state-dir and --brokers: name one of them")
    if state_dir is not None:
        settings, _ = server_settings(state_dir)
    else:
        settings = load_settings() if brokers is None else load_settings(brokers=brokers)
    topics = declared.load()
    return settings, topics, topics.resolve_for(settings)


@click.group()
def topics() -> None:
    """Create and check the topics that topics.yaml declares."""


@topics.command()
@_BROKERS
def apply(brokers: str | None) -> None:
    """Create what is missing. Nothing that exists is changed; differences are printed (exit code 1)."""
    settings, _, resolved = _resolved(brokers)
    admin = declared.admin_client(settings.kafka)
    for name in declared.apply(admin, resolved):
        click.echo(f"created {name} with {resolved[name].partitions} partitions")
    _report(declared.check(admin, resolved), len(resolved))


@topics.command()
@_BROKERS
@_STATE_DIR
def check(brokers: str | None, state_dir: Path | None) -> None:
    """Compare the broker with topics.yaml: one line per difference, exit code 1 if there is any."""
    settings, _, resolved = _resolved(brokers, state_dir)
    _report(declared.check(declared.admin_client(settings.kafka), resolved), len(resolved))


@topics.command("list")
@click.option("--json", "as_json", is_flag=True, help="as JSON")
def list_topics(as_json: bool) -> None:
    """Show what is declared, for the profile and partition counts of the settings. Asks no broker."""
    _, declared_topics, resolved = _resolved(None)
    if as_json:
        document = {
            name: declared_topics.topics[name].model_dump() | asdict(resolved[name]) for name in resolved
        }
        click.echo(json.dumps(document, indent=2))
        return
    rows = [
        (
            name,
            topic.partitions,
            topic.replication,
            topic.cleanup,
            span(topic.retention_ms),
            declared_topics.topics[name].producer,
            ", ".join(declared_topics.topics[name].consumers),
        )
        for name, topic in resolved.items()
    ]
    header = ("TOPIC", "PARTITIONS", "REPLICAS", "CLEANUP", "RETENTION", "PRODUCER", "CONSUMERS")
    click.echo(columns(header, rows))


def _report(problems: list[str], total: int) -> None:
    for line in problems:
        click.echo(line, err=True)
    if problems:
        sys.exit(1)
    click.echo(f"{total} topics are as declared")
