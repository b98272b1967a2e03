"""How a stream worker's process ends once its work has. Spec: §11."""

import subprocess
import sys
import textwrap

import faust
import pytest

from qim_streams.streaming import worker
from qim_streams.streaming.worker import PromptWorker


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What happened, in order."""
    said: list[str] = []
    monkeypatch.setattr(faust.Worker, "stop_and_shutdown", lambda self: said.append("stopped"))
    monkeypatch.setattr(worker, "_leave", lambda: said.append("left"))
    return said


def test_the_process_ends_with_its_work(left: list[str]) -> None:
    PromptWorker.__new__(PromptWorker).stop_and_shutdown()
    assert left == ["stopped", "left"]


def test_an_error_on_its_way_ends_the_process_itself(left: list[str]) -> None:
    def run() -> None:
        try:
            raise RuntimeError("a service crashed")
        finally:
            PromptWorker.__new__(PromptWorker).stop_and_shutdown()

    with pytest.raises(RuntimeError, match="a service crashed"):
        run()
    assert left == ["stopped"]


def test_what_was_said_is_written_before() -> None:
    """Nothing else is done: no finalizer runs, whatever is registered."""
    program = """
        import atexit, logging.handlers, sys
        from qim_streams.streaming import worker
        atexit.register(print, "finalized")
        kept = logging.handlers.MemoryHandler(99, logging.CRITICAL, target=logging.StreamHandler(sys.stdout))
        logging.getLogger().addHandler(kept)
        logging.getLogger().error("said last")
        sys.stdout.write("unflushed ")
        worker._leave()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "unflushed said last\n"
