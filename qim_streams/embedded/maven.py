"""Jars from Maven Central by exact version, kept in the user's cache, checked before every use.

The download is one ordinary `mvn dependency:copy-dependencies` of a generated pom; mirrors, proxies and
credentials are whatever `mvn` is set up with on this machine.

Invariants:

* A folder in the cache is complete: it is filled under a temporary name and renamed when every jar is
  there and its manifest is written.
* Two starts that race make one download: the second waits for the first.
* A jar is used only when its SHA-256 is the one in the manifest, and, for jar sets that come with a list
  of checksums in this package, the manifest is that list.

What it does not do: resolve version ranges (coordinates are exact) or clean up old versions.
"""

import hashlib
import importlib.resources
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from qim_streams.embedded import files
from qim_streams.embedded.errors import JarChecksumError, JarDownloadError, JavaMissingError
from qim_streams.embedded.locking import DirectoryLock, lock_holder

COPY_GOAL = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
DOWNLOAD_TIMEOUT_S = 900.0
DOWNLOAD_TRIES = 2  # the second one for a connection that broke; mvn keeps what it already has
MANIFEST_NAME = "manifest.json"
MANIFEST_FORMAT = 1

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")

_OTHERWISE_BROKER = (
    "name a broker of your own (--broker HOST:PORT), or take the in-memory fallback (--embedded-broker tansu)"
)

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class JarSet:
    """What to fetch: `coordinates` are `group:artifact:version`; dependencies come with them.

    `checksums` names a list in this package's `locks/` folder; None trusts the first download.
    `otherwise` says how to do without the set, for the texts of errors.
    """

    name: str
    version: str
    coordinates: tuple[str, ...]
    checksums: str | None = None
    otherwise: str = _OTHERWISE_BROKER

    @property
    def folder_name(self) -> str:
        """Name in the cache; another set of coordinates gets another folder."""
        digest = hashlib.sha256("\n".join(self.coordinates).encode()).hexdigest()[:8]
        return f"{self.name}-{self.version}-{digest}"


@dataclass(frozen=True, slots=True)
class JarFolder:
    """Verified jars on disk."""

    path: Path
    jars: tuple[str, ...]

    @property
    def classpath(self) -> str:
        """Class path in one fixed order (class-data archives depend on it)."""
        return os.pathsep.join(str(self.path / jar) for jar in self.jars)


def print_progress(line: str) -> None:
    """One line on standard error."""
    print(f"qim: {line}", file=sys.stderr, flush=True)


def cache_root() -> Path:
    """`$XDG_CACHE_HOME/qim-streams`, else `~/.cache/qim-streams`."""
    configured = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG rules say that a relative path is invalid and ignored.
    base = Path(configured) if os.path.isabs(configured) else Path.home() / ".cache"
    return base / "qim-streams"


def ensure_jars(
    jar_set: JarSet, *, cache: Path | None = None, progress: Progress = print_progress
) -> JarFolder:
    """The verified folder of `jar_set`, downloaded when it is missing or damaged.

    JavaMissingError without `mvn`, JarDownloadError when the download fails, JarChecksumError when what
    came is not what was expected. On error nothing is left under the final name.
    """
    jars_root = (cache or cache_root()) / "jars"
    folder = jars_root / jar_set.folder_name
    if (found := _verified(folder, jar_set)) is not None:
        return found
    jars_root.mkdir(parents=True, exist_ok=True, mode=0o700)
    lock_path = jars_root / f".{jar_set.folder_name}.lock"
    if lock_holder(lock_path) is not None:
        progress(f"waiting for another process that fetches {jar_set.name} {jar_set.version}")
    with DirectoryLock(lock_path, wait_s=DOWNLOAD_TIMEOUT_S, remedy="end that download and run again"):
        if (found := _verified(folder, jar_set)) is not None:
            return found
        if folder.exists():
            progress(f"{folder} is incomplete or changed; fetching it again")
        _download(jar_set, folder, progress)
    found = _verified(folder, jar_set)
    if found is None:
        raise JarChecksumError(f"{folder} changed while it was written; run again")
    return found


def is_cached(jar_set: JarSet, cache: Path) -> bool:
    """True when the set was fetched before; whether it is undamaged `ensure_jars` says."""
    return (cache / "jars" / jar_set.folder_name / MANIFEST_NAME).exists()


def render_pom(jar_set: JarSet) -> str:
    """The pom that asks for exactly the coordinates of `jar_set`."""
    dependencies = []
    for coordinate in jar_set.coordinates:
        group, artifact, version = (escape(part) for part in coordinate.split(":"))
        dependencies.append(
            f"    <dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
            f"<version>{version}</version></dependency>"
        )
    return "\n".join(
        [
            '<project xmlns="http://maven.apache.org/POM/4.0.0">',
            "  <modelVersion>4.0.0</modelVersion>",
            f"  <groupId>qim.embedded</groupId><artifactId>{escape(jar_set.name)}</artifactId>",
            f"  <version>{escape(jar_set.version)}</version><packaging>pom</packaging>",
            "  <dependencies>",
            *dependencies,
            "  </dependencies>",
            "</project>",
            "",
        ]
    )


def sha256_of(path: Path) -> str:
    """Hex SHA-256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def expected_checksums(jar_set: JarSet) -> dict[str, str] | None:
    """Jar name -> SHA-256 as shipped with this package, or None when the set has no list."""
    if jar_set.checksums is None:
        return None
    source = importlib.resources.files("qim_streams.embedded").joinpath("locks", jar_set.checksums)
    rows = (line.split() for line in source.read_text().splitlines() if line.strip())
    return {name: digest for digest, name in rows}


def check_manifest(folder: Path, manifest: Mapping[str, str]) -> list[str]:
    """Names in `manifest` whose file in `folder` is missing or has another checksum."""
    return [
        name
        for name, digest in sorted(manifest.items())
        if not (folder / name).is_file() or sha256_of(folder / name) != digest
    ]


def _verified(folder: Path, jar_set: JarSet) -> JarFolder | None:
    document = files.read_json(folder / MANIFEST_NAME)
    if document is None or document.get("format") != MANIFEST_FORMAT:
        return None
    jars: dict[str, str] = document.get("jars") or {}
    if not jars or jars != (expected_checksums(jar_set) or jars) or check_manifest(folder, jars):
        return None
    return JarFolder(folder, tuple(sorted(jars)))


def _download(jar_set: JarSet, folder: Path, progress: Progress) -> None:
    mvn = shutil.which("mvn")
    if mvn is None:
        raise JavaMissingError(
            f"mvn is needed once to fetch {jar_set.name} {jar_set.version} and is not on PATH: install Maven "
            f"(`apt-get install maven`), or {jar_set.otherwise}"
        )
    progress(f"fetching {jar_set.name} {jar_set.version} with mvn into {folder} (once)")
    started = time.monotonic()
    # Left over from a download that was killed: we hold the lock, so nobody works in it.
    for left_over in folder.parent.glob(f".{folder.name}.*/"):
        shutil.rmtree(left_over, ignore_errors=True)
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        target = work / "jars"
        _run_mvn(mvn, jar_set, work, target)
        jars = _accepted_jars(target, jar_set)
        files.write_private_json(
            target / MANIFEST_NAME,
            {"format": MANIFEST_FORMAT, "coordinates": list(jar_set.coordinates), "jars": jars},
        )
        if folder.exists():
            folder.rename(work / "replaced")
        target.rename(folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    size_mb = sum((folder / jar).stat().st_size for jar in jars) / 1e6
    seconds = time.monotonic() - started
    progress(f"fetched {jar_set.name} {jar_set.version}: {len(jars)} jars, {size_mb:.0f} MB, {seconds:.1f} s")


def _run_mvn(mvn: str, jar_set: JarSet, work: Path, target: Path) -> None:
    (work / "pom.xml").write_text(render_pom(jar_set))
    command = [
        mvn, "--batch-mode", "--no-transfer-progress", "--quiet", "--strict-checksums",
        "--file", str(work / "pom.xml"), COPY_GOAL,
        f"-DoutputDirectory={target}", "-DincludeScope=runtime",
    ]  # fmt: skip
    said = ""
    for _ in range(DOWNLOAD_TRIES):
        try:
            done = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_S
            )
        except subprocess.TimeoutExpired:
            said = f"no end after {DOWNLOAD_TIMEOUT_S:.0f} s"
            continue
        if done.returncode == 0:
            return
        said = first_error(done.stdout + done.stderr) or f"exit code {done.returncode}"
    raise JarDownloadError(
        f"cannot fetch {', '.join(jar_set.coordinates)}: mvn says: {said}. Check the network, or mirror and "
        f"proxy in ~/.m2/settings.xml, and run again; or {jar_set.otherwise}"
    )


def first_error(output: str) -> str:
    """The first `[ERROR]` line of mvn without its colours, at most 400 characters; '' when none."""
    for line in output.splitlines():
        _, mark, text = _COLOUR.sub("", line).partition("[ERROR]")
        if mark and text.strip():
            return text.strip()[:400]
    return ""


def _accepted_jars(target: Path, jar_set: JarSet) -> dict[str, str]:
    jars = {path.name: sha256_of(path) for path in sorted(target.glob("*.jar"))}
    expected = expected_checksums(jar_set)
    if not jars:
        raise JarDownloadError(f"mvn brought no jar for {', '.join(jar_set.coordinates)}; run again")
    if expected is None or jars == expected:
        return jars
    wrong = sorted(name for name in jars.keys() | expected.keys() if jars.get(name) != expected.get(name))
    raise JarChecksumError(
        f"{jar_set.name} {jar_set.version}: {len(wrong)} jars differ from the expected checksums, first "
        f"{wrong[0]}; do not use this mirror, or remove the jar from ~/.m2/repository and run again"
    )
