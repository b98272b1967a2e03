"""Routes of dead letters: look, give a record back to its log, put a letter aside.

Spec: §11.
"""

import logging
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query

from qim_streams.console.dead_letters import LetterPage, LetterView
from qim_streams.console.services import ConsoleDeps

PAGE = 50
LIMIT_MAX = 200
LetterPath = Annotated[str, Path(pattern=r"^[0-9]{1,4}-[0-9]{1,18}$", description="`id` of a letter")]

log = logging.getLogger(__name__)


def dead_letter_routes(console: ConsoleDeps) -> APIRouter:
    """The routes below ``/v1/dead-letters``."""
    routes = APIRouter(prefix="/v1/dead-letters", tags=["operation"])
    letters = console.letters

    @routes.get("")
    async def list_letters(
        cursor: Annotated[str | None, Query(max_length=4_096, pattern=r"^[0-9.]+$")] = None,
        limit: Annotated[int, Query(ge=1, le=LIMIT_MAX)] = PAGE,
        state: Literal["open", "giving_back", "given_back", "discarded"] | None = None,
        contains: Annotated[str, Query(max_length=128)] = "",
    ) -> LetterPage:
        """Dead letters, the newest first. With a filter a page may be short; go on from `next_cursor`."""
        return await letters.page(cursor, limit, state, contains)

    @routes.get("/{letter}")
    async def read_letter(letter: LetterPath) -> LetterView:
        """A letter with the first bytes of its value."""
        return await letters.view(letter)

    @routes.post("/{letter}/give-back")
    async def give_back(letter: LetterPath) -> LetterView:
        """Append the record to its log once more; the stage tries again."""
        found = await letters.give_back(letter)
        log.warning("dead letter %s was given back to %s[%d]", letter, found.topic, found.partition)
        return found

    @routes.post("/{letter}/discard")
    async def discard(letter: LetterPath) -> LetterView:
        """Put a letter aside. It stays in the log until its retention."""
        found = await letters.discard(letter)
        log.warning("dead letter %s was discarded", letter)
        return found

    return routes
