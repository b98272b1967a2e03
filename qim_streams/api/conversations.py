"""Routes of direct chats and of conversations' heads.

Spec: §2, §4.
"""

from fastapi import APIRouter

from qim_streams.api import models
from qim_streams.api.models import ConversationAnswer, ConversationPath, DirectChat, Tenant
from qim_streams.api.ports import Commands, Conversations
from qim_streams.errors import AdmissionRefused


def conversation_routes(commands: Commands, conversations: Conversations) -> APIRouter:
    """The routes ``direct`` and ``conversations`` of a tenant."""
    routes = APIRouter(prefix="/v1/tenants/{tenant}", tags=["conversations"])

    @routes.post("/direct")
    async def direct_chat(tenant: Tenant, body: DirectChat) -> ConversationAnswer:
        """The direct chat of two users, made when there is none. The order of the two does not matter."""
        return models.conversation_answer(await commands.direct(tenant, body.user_id, body.peer_id))

    @routes.get("/conversations/{conversation}")
    async def conversation_head(tenant: Tenant, conversation: ConversationPath) -> ConversationAnswer:
        """The head of a conversation: last seq, version, policies, how many members."""
        head = await conversations.conversation(tenant, conversation)
        if head is None:
            raise AdmissionRefused("NO_CONVERSATION", "there is no such conversation")
        return models.conversation_answer(head)

    return routes
