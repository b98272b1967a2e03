"""Keys, roles and the audit log in front of an ASGI application.

`Gatekeeper.enter` decides before a route runs and notes what begins; `Audited` notes how it ended. A change
that cannot be noted is not made.

Spec: §14.9.
"""

import logging
from typing import Any, Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from qim_streams.admin.audit import Action, AuditLog
from qim_streams.admin.keys import AdminKeys
from qim_streams.admin.rules import Role, needed
from qim_streams.errors import StoreUnavailable

log = logging.getLogger(__name__)

_STEP: Final = "audit_step"
REFUSED_KEY, REFUSED_ROLE = 401, 403


def presented(scope: Scope) -> list[str]:
    """The keys that a request shows, in Authorization: Bearer and X-Api-Key, as far as it has them."""
    found = []
    for name, value in scope["headers"]:
        text = value.decode("latin-1")
        if name == b"x-api-key":
            found.append(text)
        elif name == b"authorization" and text[:7].lower() == "bearer ":
            found.append(text[7:].strip())
    return found


class Gatekeeper:
    """Who may enter. `audit` None: nothing is noted (tests, and whoever embeds the routes)."""

    def __init__(self, keys: AdminKeys, audit: AuditLog | None = None) -> None:
        self._keys, self._audit = keys, audit

    def knows(self, scope: Scope) -> bool:
        """Whether a request shows a key that is one, whatever it may do."""
        return any(self._keys.find(one) is not None for one in presented(scope))

    async def enter(self, scope: Scope, presented: str | None) -> Role | None:
        """None: go on. Else the role that is needed: READER for a key that is none.

        StoreUnavailable: the action cannot be noted, so it must not be done.
        """
        method, path = str(scope["method"]), str(scope["path"])
        key = None if presented is None else self._keys.find(presented)
        wanted = needed(method, path)
        allowed = key is not None and key.role >= wanted
        client = scope.get("client")
        action = Action(
            "" if key is None else key.name,
            "" if key is None else key.role.name.lower(),
            f"{method} {path}",
            str(client[0]) if client else "",
        )
        if self._audit is not None:
            if not allowed:
                await self._audit.refused(action, REFUSED_KEY if key is None else REFUSED_ROLE)
            elif wanted > Role.READER:
                state: dict[str, Any] = scope.setdefault("state", {})
                state[_STEP] = await self._audit.begin(action)
        if allowed:
            return None
        return Role.READER if key is None else wanted


class Audited:
    """ASGI middleware: notes the status of what `Gatekeeper` has begun."""

    def __init__(self, app: ASGIApp, audit: AuditLog | None) -> None:
        self._app, self._audit = app, audit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request; other scopes pass untouched."""
        if scope["type"] != "http" or self._audit is None:
            await self._app(scope, receive, send)
            return
        state: dict[str, Any] = scope.setdefault("state", {})
        outcome: list[int] = []

        async def watched(message: Message) -> None:
            if message["type"] == "http.response.start":
                outcome.append(int(message["status"]))
            await send(message)

        try:
            await self._app(scope, receive, watched)
        finally:
            step = state.get(_STEP)
            if step is not None:
                await self._end(self._audit, step, outcome[0] if outcome else "no answer")

    async def _end(self, audit: AuditLog, step: int, outcome: int | str) -> None:
        try:
            await audit.end(step, outcome)
        except StoreUnavailable as error:
            # It is done; that its end is missing says that the outcome is unknown.
            log.error("the end of action %d was not noted: %s", step, error)
