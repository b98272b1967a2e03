"""The route that issues access tokens: for tests, demos, and servers without an identity provider.

Spec: §7.
"""

from fastapi import APIRouter, Response

from qim_streams.api.failures import ApiRefusal
from qim_streams.api.models import MintToken, Tenant, TokenAnswer
from qim_streams.api.ports import TokenMint


def token_routes(mint: TokenMint | None) -> APIRouter:
    """The route ``/v1/tenants/{tenant}/tokens``; it refuses where no HS256 secret is configured."""
    routes = APIRouter(prefix="/v1/tenants/{tenant}", tags=["tokens"])

    @routes.post("/tokens", status_code=201)
    async def mint_token(tenant: Tenant, body: MintToken, response: Response) -> TokenAnswer:
        """An access token for a user."""
        if mint is None:
            raise ApiRefusal(
                "TOKENS_NOT_CONFIGURED", "tokens are minted only where QIM_JWT_SECRET (HS256) is set"
            )
        response.headers["Cache-Control"] = "no-store"
        token, expires_at = mint(tenant, body.user_id, body.ttl_s)
        return TokenAnswer(access_token=token, expires_at=expires_at)

    return routes
