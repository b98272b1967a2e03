"""What can go wrong when local servers are started; every text names the cause and the remedy.

All are `ConfigError`: the machine or the command line has to change before another try can work, and a
command prints them as one line. They never reach a stream stage; their rows in the policy table exist
because every class of the tree has one.
"""

from qim_streams.errors import POLICY, ConfigError, Policy


class EmbeddedError(ConfigError):
    """A local server or role could not be prepared, started or stopped."""


class JavaMissingError(EmbeddedError):
    """No usable Java (17 or newer) or no `mvn` for the first download."""


class JarDownloadError(EmbeddedError):
    """`mvn` could not bring the jars. Nothing was left in the cache."""


class JarChecksumError(EmbeddedError):
    """A jar is not the one that this version was built against. It was not used."""


class PortInUseError(EmbeddedError):
    """A port that was asked for by number is taken."""


class StateDirLockedError(EmbeddedError):
    """Another process works in the same directory. `pid` is None when it could not be read."""

    def __init__(self, detail: str, pid: int | None) -> None:
        super().__init__(detail)
        self.pid = pid


class ServerStartError(EmbeddedError):
    """A server ended or stayed silent before it answered its first request."""


POLICY.update(
    dict.fromkeys(
        (
            EmbeddedError,
            JavaMissingError,
            JarDownloadError,
            JarChecksumError,
            PortInUseError,
            StateDirLockedError,
            ServerStartError,
        ),
        Policy.CRASH,
    )
)
