"""The Java runtime on this machine: where it is, how new it is, and how its start is made quick.

A class-data archive holds the classes that a server loaded in an earlier run, parsed and linked. On a
2-core machine it takes the start of the broker from 2.4 s (3.7 s of CPU) to 1.1 s (1.8 s of CPU). The JVM
writes it when a run that began without one ends cleanly; it is bound to that JVM build and class path, so
both are in its name, and a JVM that finds it unfit goes on without it.
"""

import functools
import hashlib
import os
import re
import secrets
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from qim_streams.embedded.errors import JavaMissingError

JAVA_MAJOR_MIN = 17
VERSION_TIMEOUT_S = 30.0
_QUIET = ("-Xlog:cds=off", "-Xlog:cds+dynamic=off")  # an unfit archive is no event for anybody
_REMEDY = (
    "install a Java runtime (`apt-get install openjdk-17-jre-headless`) or set JAVA_HOME, or name a broker "
    "of your own (--broker HOST:PORT), or take the in-memory fallback (--embedded-broker tansu)"
)


@dataclass(frozen=True, slots=True)
class JavaRuntime:
    """A usable `java`: path of the program, major version, and the full text of its version."""

    program: str
    major: int
    build: str


def find_java() -> JavaRuntime:
    """`$JAVA_HOME/bin/java`, else `java` of the PATH; JavaMissingError when there is none that fits."""
    home = os.environ.get("JAVA_HOME", "")
    program = shutil.which("java", path=str(Path(home) / "bin")) if home else None
    program = program or shutil.which("java")
    if program is None:
        raise JavaMissingError(f"no java on PATH, and {JAVA_MAJOR_MIN} or newer is needed: {_REMEDY}")
    return _inspect(program)


def parse_major(version_text: str) -> int | None:
    """Major version out of `java -version`: 8 for "1.8.0_302", 17 for "17.0.15", None when unknown."""
    match = re.search(r'version "(?:1\.)?(\d+)', version_text)
    return int(match.group(1)) if match else None


@functools.lru_cache(maxsize=4)
def _inspect(program: str) -> JavaRuntime:
    try:
        done = subprocess.run(
            [program, "-version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=VERSION_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JavaMissingError(f"{program} -version does not run ({error}): {_REMEDY}") from error
    build = done.stderr + done.stdout
    major = parse_major(build)
    if done.returncode != 0 or major is None or major < JAVA_MAJOR_MIN:
        found = f"is version {major}" if major else "does not tell its version"
        raise JavaMissingError(f"{program} {found}, {JAVA_MAJOR_MIN} or newer is needed: {_REMEDY}")
    return JavaRuntime(program, major, build)


class ClassArchive:
    """The class-data archive of one program under one JVM, in the cache.

    `options()` before a start, `adopt()` after a clean end. Both are safe when many processes use the
    same archive: it is written under a name of its own and renamed.
    """

    def __init__(self, folder: Path, program_name: str, runtime: JavaRuntime, classpath: str) -> None:
        key = hashlib.sha256(f"{runtime.build}\0{classpath}".encode()).hexdigest()[:16]
        self.path = folder / f"{program_name}-{key}.jsa"
        self._draft = folder / f".{self.path.name}.{secrets.token_hex(4)}"

    def options(self) -> list[str]:
        """JVM options: use the archive, or make one at the end of this run."""
        if self.path.exists():
            return self.reading_options()
        self.path.parent.mkdir(parents=True, exist_ok=True)
        return [f"-XX:ArchiveClassesAtExit={self._draft}", *_QUIET]

    def reading_options(self) -> list[str]:
        """JVM options of a run that uses the archive when there is one and never makes one."""
        return [f"-XX:SharedArchiveFile={self.path}", *_QUIET] if self.path.exists() else []

    def adopt(self) -> None:
        """Keep the archive that the ended run wrote, if it did."""
        if self._draft.exists():
            self._draft.replace(self.path)

    def discard(self) -> None:
        """Drop what a run that was killed may have left half-written."""
        self._draft.unlink(missing_ok=True)
