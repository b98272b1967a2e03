"""Connections to an HTTP server that have not become what they came for, and their end.

A server of aiohttp keeps a connection that asks for nothing for ever. Whoever listens says which connections
became peers (sockets, links), looks now and then, and ends the others when they have had their time.

Invariants: what became a peer is never ended here, however silent it is; time comes in.
"""

from collections.abc import KeysView
from typing import Any

from aiohttp import web


class Loiterers:
    """The connections of one server that are no peers, each since it was first seen."""

    def __init__(self) -> None:
        self._peers: set[object] = set()  # HTTP protocols that became one
        self._since: dict[Any, float] = {}

    def became(self, protocol: object) -> None:
        """The connection of this HTTP protocol is a peer from now on."""
        self._peers.add(protocol)

    def left(self, protocol: object) -> None:
        """The peer is gone. Safe to repeat."""
        self._peers.discard(protocol)

    @property
    def present(self) -> KeysView[Any]:
        """The HTTP protocols that were no peers at the last look, those included that it ended."""
        return self._since.keys()

    def look(self, server: web.Server | None, now_s: float, patience_s: float) -> int:
        """End those that have been here for more than `patience_s`; how many. None: no server, nobody."""
        strangers = set() if server is None else set(server.connections) - self._peers
        self._since = {one: self._since.get(one, now_s) for one in strangers}
        late = [one for one, since_s in self._since.items() if now_s - since_s > patience_s]
        for one in late:
            if one.transport is not None:
                one.transport.abort()
        return len(late)
