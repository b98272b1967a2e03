"""Routes without a key: alive, ready, version. They tell nothing about tenants."""

import asyncio
import logging
from collections.abc import Mapping

from fastapi import APIRouter, Response

from qim_streams import __version__
from qim_streams.api.models import HealthAnswer, ReadyAnswer, VersionAnswer
from qim_streams.api.ports import Probe
from qim_streams.readiness import status_of

PROBE_SECONDS_MAX = 2.0

log = logging.getLogger(__name__)


def health_routes(probes: Mapping[str, Probe]) -> APIRouter:
    """``/healthz``, ``/readyz`` and ``/version``."""
    routes = APIRouter(tags=["health"])

    @routes.get("/healthz")
    async def health() -> HealthAnswer:
        """The process is alive."""
        return HealthAnswer(status="ok")

    @routes.get("/readyz", responses={503: {"model": ReadyAnswer}})
    async def ready(response: Response) -> ReadyAnswer:
        """Whether every dependency answers; 503 when one does not."""
        outcomes = await asyncio.gather(*(_probe(name, probe) for name, probe in probes.items()))
        dependencies = dict(zip(probes, outcomes, strict=True))
        reasons = [f"{name} does not answer: {said}" for name, said in dependencies.items() if said != "ok"]
        response.status_code = status_of(reasons)
        return ReadyAnswer(ready=not reasons, reasons=reasons, dependencies=dependencies)

    @routes.get("/version")
    async def version() -> VersionAnswer:
        """What is running."""
        return VersionAnswer(version=__version__)

    return routes


async def _probe(name: str, probe: Probe) -> str:
    try:
        async with asyncio.timeout(PROBE_SECONDS_MAX):
            await probe()
    except Exception as error:  # noqa: BLE001 - whatever it is, the dependency does not answer
        log.warning("%s does not answer: %s: %s", name, type(error).__name__, error)
        return type(error).__name__
    return "ok"
