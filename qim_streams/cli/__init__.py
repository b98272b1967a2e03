"""The command line: ``qim ...``. Commands are loaded when they are called, so ``--help`` is fast.

Exit codes: 0 done, 1 refused or failed with one line that says what to do, 2 wrong usage,
3 something is left to repair (`qim repair`), 70 a role stopped on doubt.
"""

import importlib
import sys

import click

from qim_streams import __version__
from qim_streams.errors import QimError

# name -> (module, attribute, one-line help)
_COMMANDS = {
    "up": ("qim_streams.cli.up", "up", "start the embedded servers and every role"),
    "down": ("qim_streams.cli.up", "down", "stop a running stack"),
    "restart": (
        "qim_streams.cli.restart",
        "restart",
        "restart roles of a running stack, one by one",
    ),
    "status": ("qim_streams.cli.up", "status", "roles of a running stack"),
    "demo": ("qim_streams.cli.demo", "demo", "play real conversations through a stack and check them"),
    "bench": ("qim_streams.cli.bench", "bench", "load a stack and judge what it delivers"),
    "gateway": ("qim_streams.cli.role", "gateway", "run one ConnectionNode"),
    "writer": ("qim_streams.cli.role", "writer", "run one ConversationWriter"),
    "rooms": ("qim_streams.cli.role", "rooms", "run one RoomWriter"),
    "api": ("qim_streams.cli.role", "api", "run the HTTP admin API"),
    "chat": ("qim_streams.cli.chat", "chat", "talk in a terminal"),
    "send": ("qim_streams.cli.send", "send", "send one message"),
    "edit": ("qim_streams.cli.change", "edit", "give a message another body"),
    "recall": ("qim_streams.cli.change", "recall", "take a message back"),
    "tail": ("qim_streams.cli.tail", "tail", "print a user's messages as they arrive"),
    "history": ("qim_streams.cli.history", "history", "print a conversation as a user may read it"),
    "sessions": ("qim_streams.cli.sessions", "sessions", "list a user's conversations and change his marks"),
    "token": ("qim_streams.cli.token", "token", "mint an access token for a user"),
    "group": ("qim_streams.cli.group", "group", "create and change groups"),
    "room": ("qim_streams.cli.room", "room", "create rooms, talk in them and govern them"),
    "tables": ("qim_streams.cli.tables", "tables", "look into DispatchProgress and W[lane]"),
    "trace": ("qim_streams.cli.trace", "trace", "show a message's way through all levels"),
    "archive": ("qim_streams.cli.archive", "archive", "prepare and inspect the archive"),
    "repair": ("qim_streams.cli.repair", "repair", "compare Redis with the logs and bring it back"),
    "user": ("qim_streams.cli.user", "user", "export or erase what there is of a user"),
    "backup": ("qim_streams.cli.backup", "backup", "copy what cannot be rebuilt into a directory"),
    "restore": ("qim_streams.cli.backup", "restore", "restore a backup into empty servers"),
    "shard": ("qim_streams.cli.shard", "shard", "show and split MailboxShards"),
    "audit": ("qim_streams.cli.audit", "audit", "look at the record of admin actions and check it"),
    "topics": ("qim_streams.cli.topics", "topics", "create and check the topics"),
    "config": ("qim_streams.cli.config", "config", "print and check the settings"),
}


class LazyGroup(click.Group):
    """A group whose commands are imported when they are needed, with our errors as one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Every command, in the order of `_COMMANDS`."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, None when there is none."""
        if cmd_name not in _COMMANDS:
            return None
        module, attribute, _ = _COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in _COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; what we raise on purpose is one line on stderr and exit code 1."""
        try:
            return super().invoke(ctx)
        except QimError as error:
            click.echo(f"qim {ctx.invoked_subcommand or ''}: {error}", err=True)
            sys.exit(1)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="qim")
def main() -> None:
    """Q-IM streams: the messaging core of an instant messenger as a streams pipeline."""
