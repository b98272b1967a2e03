"""What a supervisor hears from the roles that it runs: pages, files, silence and nonsense."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from qim_streams.embedded.readiness import SILENCE_S, told_by_file, told_by_page

answers: dict[str, tuple[int, bytes]] = {
    "/well": (200, b'{"ready": true, "reasons": []}'),
    "/ill": (503, b'{"ready": false, "reasons": ["redis has not answered for 7 s", "late"]}'),
    "/odd": (503, b"not ready\n"),
    "/long": (503, json.dumps({"reasons": ["x" * 10_000] * 100}).encode()),
}


class Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        code, body = answers[self.path]
        self.send_response(code)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture(scope="module")
def base() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_a_page_gives_its_reasons(base: str) -> None:
    assert told_by_page(f"{base}/well")() == []
    assert told_by_page(f"{base}/ill")() == ["redis has not answered for 7 s", "late"]
    assert "form" in told_by_page(f"{base}/odd")()[0]
    long = told_by_page(f"{base}/long")()
    assert long == ["does not say how it is in a form that is understood"] or max(map(len, long)) <= 200


def test_nobody_at_the_page() -> None:
    (reason,) = told_by_page("http://127.0.0.1:1/readyz")()
    assert "does not answer" in reason


def test_a_file_gives_its_reasons_while_it_is_fresh(tmp_path: Path) -> None:
    path, now = tmp_path / "health.json", [1_000.0]
    health = told_by_file(path, lambda: now[0])
    assert health() == ["has not said yet how it is"]
    path.write_text(json.dumps({"at_ms": 1_000_000, "ready": False, "reasons": ["late"]}))
    assert health() == ["late"]
    path.write_text(json.dumps({"at_ms": 1_000_000, "ready": True, "reasons": []}))
    assert health() == []
    now[0] += SILENCE_S + 2
    assert health() == ["has said nothing for 10 s"], "a process that is paused says nothing"
    for odd in ("", "{", "[]", '{"at_ms": "x"}'):
        path.write_text(odd)
        assert health() == ["has not said yet how it is"]
