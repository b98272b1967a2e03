"""The demonstration: short scenes, then real rooms, through every level, with a verdict at the end.

Invariants: the report is clean only when every message was acknowledged, every mailbox is exactly what
the trace says, every scene satisfies the oracle, and no show has a complaint; nothing is left open. What
is not played (edits, recalls, reactions) is said.

Spec: §1, §3 to §7, §10.
"""

import asyncio
import gc
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from qim_streams.demo.check import Verdict
from qim_streams.demo.people import People
from qim_streams.demo.player import PlayOptions, RoomPlayer, RoomReport
from qim_streams.demo.ports import LEVELS, LevelProbe, MintToken, Say
from qim_streams.demo.scenes import SCENES, Judgement, Scene
from qim_streams.demo.shows import PlayShow, Show
from qim_streams.demo.traces import Trace, read_trace

EXIT_CLEAN, EXIT_NOT_CLEAN = 0, 1
SAMPLE_SCENE = "group"  # its last message is the one whose levels are shown


@dataclass(slots=True)
class DemoReport:
    """Everything that was played and what came of it."""

    scenes: list[Scene] = field(default_factory=list)
    shows: list[Show] = field(default_factory=list)
    rooms: list[RoomReport] = field(default_factory=list)
    levels: Mapping[str, int | None] | None = None
    seconds: float = 0.0

    @property
    def judgements(self) -> list[Judgement]:
        """What the oracle says of each scene."""
        return [scene.judge() for scene in self.scenes]

    @property
    def clean(self) -> bool:
        """Whether nothing was lost, duplicated, reordered or delivered to the wrong people."""
        played = all(room.clean for room in self.rooms) and not any(one.texts for one in self.judgements)
        return played and not any(show.complaints for show in self.shows)

    @property
    def exit_code(self) -> int:
        """0 clean, 1 not."""
        return EXIT_CLEAN if self.clean else EXIT_NOT_CLEAN

    def lines(self) -> list[str]:
        """The summary for a terminal."""
        lines = [line for scene in self.scenes for line in _scene_lines(scene)]
        lines += [line for show in self.shows for line in _show_lines(show)]
        lines += [line for room in self.rooms for line in _room_lines(room)]
        lines += _level_lines(self.levels)
        total = Verdict()
        for room in self.rooms:
            total.add(room.pushed)
            total.add(room.pulled)
        scenes = self.judgements
        messages = sum(scene.messages for scene in self.scenes)
        sent = messages + sum(room.messages for room in self.rooms)
        acked = messages + sum(room.acked for room in self.rooms)
        delivered = total.delivered + sum(scene.shown for scene in self.scenes)
        lines.append(
            f"total: sent {sent:,}, acknowledged {acked:,}, delivered {delivered:,}, "
            f"lost {total.lost + sum(one.lost for one in scenes)}, "
            f"duplicated {total.duplicated + sum(one.duplicated for one in scenes)}, "
            f"reordered {total.reordered + sum(one.reordered for one in scenes)}, in {self.seconds:.1f} s"
        )
        lines.append("verdict: clean" if self.clean else "verdict: NOT CLEAN")
        return lines


async def run_demo(
    gateway_url: str,
    mint_token: MintToken,
    traces: Sequence[Path],
    say: Say,
    *,
    scale: float = 1.0,
    options: PlayOptions | None = None,
    probe: LevelProbe | None = None,
    shows: Sequence[PlayShow] = (),
    run: str | None = None,
) -> DemoReport:
    """Play the scenes and `shows`, then all rooms side by side; says what happens, returns the report.

    `scale` (0 < scale <= 1) plays that share of each trace. `run` marks users and groups of this run; by
    default the time. ConfigError for a bad trace, before anything is played.
    """
    rooms = [read_trace(path).prefix(scale) for path in traces]
    report = DemoReport()
    began_s = time.monotonic()
    with _rare_collections():
        await _play(
            report,
            rooms,
            People(gateway_url, mint_token, run or f"r{int(time.time()):x}"),
            say,
            options,
            probe,
            shows,
        )
    report.seconds = time.monotonic() - began_s
    return report


async def _play(
    report: DemoReport,
    rooms: Sequence[Trace],
    crowd: People,
    say: Say,
    options: PlayOptions | None,
    probe: LevelProbe | None,
    shows: Sequence[PlayShow],
) -> None:
    async with crowd as people:
        beside = asyncio.gather(*(show(people) for show in shows))  # waiting is most of them
        try:
            for play in SCENES:
                scene = await play(people)
                report.scenes.append(scene)
                say(_scene_lines(scene)[0])
                if probe is not None and scene.name == SAMPLE_SCENE:
                    report.levels = await _levels(probe, scene)
            report.shows = list(await beside)
        finally:
            beside.cancel()
        for show in report.shows:
            say(show.line)
        players = [RoomPlayer(room, people, options or PlayOptions(), say) for room in rooms]
        for trace in rooms:
            counts = trace.counts()
            played = ", ".join(f"{counts[kind]:,} {kind}" for kind in ("join", "leave", "message", "reply"))
            say(f"{trace.name}: playing {played}")
        report.rooms = list(await asyncio.gather(*(player.play() for player in players)))
        for show in report.shows:
            show.settle()


async def _levels(probe: LevelProbe, scene: Scene) -> Mapping[str, int | None]:
    """The levels of the scene's last message, while it is fresh."""
    last = [act for act in scene.acts if act.kind == "send"][-1]
    return await probe.levels(last.place[0], last.message_id)


@contextmanager
def _rare_collections() -> Iterator[None]:
    """A million events are kept for a moment each: looking for cycles among them costs a fifth of the run."""
    before = gc.get_threshold()
    gc.set_threshold(100_000, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _scene_lines(scene: Scene) -> list[str]:
    found = scene.judge().texts
    state = "NOT OK" if found else "ok"
    head = (
        f"scene {scene.name}: {scene.messages} messages, {scene.shown} shown on {len(scene.seen)} devices: "
        f"{state}"
    )
    return [head, *(f"  {text}" for text in found[:5])]


def _show_lines(show: Show) -> list[str]:
    return [show.line, *(f"  {text}" for text in show.complaints[:5])]


def _room_lines(room: RoomReport) -> list[str]:
    lines = [
        f"room {room.name}: {room.users} users, {room.messages:,} messages, {room.acked:,} acknowledged, "
        f"played in {room.play_s:.1f} s, mailboxes read in {room.read_s:.1f} s "
        f"(not played: {room.not_played} edits, recalls, reactions)"
    ]
    if room.refused:
        refused = ", ".join(f"{count} {code}" for code, count in room.refused.most_common())
        lines.append(f"  refused: {refused}")
    for how, verdict in (("by push", room.pushed), ("by pull", room.pulled)):
        lines.append(
            f"  {how}: {verdict.mailboxes} mailboxes, {verdict.delivered:,} of {verdict.expected:,} entries; "
            f"lost {verdict.lost}, duplicated {verdict.duplicated}, reordered {verdict.reordered}, "
            f"foreign {verdict.foreign}, wrong {verdict.wrong}"
        )
        lines += [f"    {text}" for text in verdict.examples]
    if room.wire_duplicates:
        lines.append(f"  repeated on the wire and dropped by clients: {room.wire_duplicates:,}")
    return lines


def _level_lines(levels: Mapping[str, int | None] | None) -> list[str]:
    if levels is None:
        return []
    times = [(name, levels.get(name)) for name in LEVELS]
    shown = ", ".join(f"{name} {'not proven' if at is None else f'+{at} ms'}" for name, at in times)
    return [f"levels of one message, from commit: {shown}"]
