"""The admin API against its own OpenAPI document: Schemathesis makes requests from it, good and bad. P17.

No answer is a 5xx, each is one that the document promises, each error has the one form and a code. What the
document says is good is not refused as malformed; what it says is bad is refused.
"""

import asyncio
import random
import secrets
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import hypothesis
import pytest
import requests
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable

from qim_streams.api.failures import OWN_CODES
from qim_streams.wire.codes import TABLE
from tests.support.battlefield import Battlefield
from tests.support.honest import Honest

pytestmark = [pytest.mark.integration, pytest.mark.timeout(540)]

CODES = {row.name: row.code for row in TABLE} | {name: row.code for name, row in OWN_CODES.items()}
FORM = {"code", "name", "temporary", "detail", "field", "retry_after_ms"}


class Fuzz:
    """The API of a running stack, its document, and what came of each operation."""

    def __init__(self, field: Battlefield) -> None:
        import schemathesis

        self.session = requests.Session()
        self.session.headers["Authorization"] = f"Bearer {field.client['admin_api_key']}"
        self.url = str(field.client["admin_url"])
        document = self.session.get(f"{self.url}/openapi.json", timeout=60).json()
        schema = schemathesis.openapi.from_dict(document)
        self.operations = [result.ok() for result in schema.get_all_operations()]
        self.seen: Counter[int] = Counter()

    def check(self, case: Any, *, is_good: bool) -> None:
        """Send a case and hold its answer against the document."""
        answer = case.call(base_url=self.url, session=self.session, timeout=60)
        self.seen[answer.status_code] += 1
        what = f"{case.method} {answer.request.url} -> {answer.status_code} {answer.text[:500]}"
        assert answer.status_code < 500, what
        self._check_form(answer, what)
        from schemathesis import checks
        from schemathesis.specs.openapi import checks as of_documents

        held = [
            checks.not_a_server_error,
            of_documents.status_code_conformance,
            of_documents.content_type_conformance,
            of_documents.response_schema_conformance,
            of_documents.response_headers_conformance,
        ]
        if not is_good:
            held.append(of_documents.negative_data_rejection)
        case.validate_response(answer, checks=held)

    def _check_form(self, answer: Any, what: str) -> None:
        if answer.status_code < 400:
            return
        body = answer.json()
        assert set(body) == FORM, what
        assert CODES[body["name"]] == body["code"], what
        for word in ("Traceback", 'File "', "site-packages", "redis.", "Lua"):
            assert word not in answer.text, what


def _checking(made: Fuzz, is_good: bool) -> Callable[[Any], None]:
    def check(case: Any) -> None:
        made.check(case, is_good=is_good)

    return check


def bounded(examples: int) -> Any:
    """Settings of a run: so many requests, none kept for later."""
    return settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )


def fuzz(field: Battlefield, examples: int, operations: int) -> Counter[int]:
    """`examples` good and as many bad requests to each of so many operations, which chance picks."""
    from schemathesis import GenerationMode

    made, seed = Fuzz(field), time.time_ns()
    print(f"seed {seed}")
    assert len(made.operations) > 40
    rng = random.Random(seed)
    for operation in rng.sample(made.operations, min(operations, len(made.operations))):
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            cases = operation.as_strategy(generation_mode=mode)
            is_good = mode is GenerationMode.POSITIVE
            tried = bounded(examples)(given(case=cases)(_checking(made, is_good)))
            try:
                hypothesis.seed(rng.getrandbits(64))(tried)()
            except Unsatisfiable:
                assert not is_good, operation.path  # some take nothing that could be wrong
    print(dict(made.seen))
    return made.seen


async def test_the_api_keeps_what_its_document_promises(field: Battlefield, honest: Honest) -> None:
    """A few requests to some operations; the honest go on meanwhile."""
    seen = await asyncio.to_thread(fuzz, field, 2, 6)
    assert sum(seen.values()) > 6


@pytest.mark.slow
async def test_the_api_keeps_what_its_document_promises_for_long(field: Battlefield, honest: Honest) -> None:
    """The long form."""
    seen = await asyncio.to_thread(fuzz, field, 12, 1_000)
    assert seen[422] > 100


async def test_nobody_without_a_key_gets_further(field: Battlefield) -> None:
    """Every operation of the document below /v1, with a body that is long: 401, in the one form."""

    def ask() -> None:
        made = Fuzz(field)
        with requests.Session() as stranger:
            for operation in made.operations:
                path = operation.path.replace("{", "x").replace("}", "")
                headers = {"X-Api-Key": secrets.token_hex(16), "Content-Type": "application/json"}
                answer = stranger.request(
                    operation.method, made.url + path, data=b" " * 900_000, headers=headers, timeout=60
                )
                if path.startswith("/v1/"):
                    assert (answer.status_code, answer.json()["name"]) == (401, "API_KEY_REQUIRED"), path

    await asyncio.to_thread(ask)
