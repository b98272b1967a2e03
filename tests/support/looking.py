"""A thread that looks again and again while a test runs, whatever the test's event loop does meanwhile."""

import threading
from typing import Self

JOIN_S = 30.0


class Looking:
    """Calls `look` every `every_s` seconds between entering and leaving. What `look` raises ends it."""

    def __init__(self, name: str, every_s: float) -> None:
        self._every_s = every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name=name)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(JOIN_S)

    def look(self) -> None:
        """One look."""
        raise NotImplementedError

    def _run(self) -> None:
        while not self._stop.wait(self._every_s):
            self.look()
