"""Routes of direct chats and of conversations' heads. They only read.

Spec: §2, §4.
"""

from typing import Annotated

from fastapi import APIRouter, Query

from qim_streams import ids
from qim_streams.api import models
from qim_streams.api.models import ConversationAnswer, ConversationPath, DirectAnswer, Tenant
from qim_streams.api.ports import Conversations
from qim_streams.errors import AdmissionRefused

UserQuery = Annotated[str, Query(pattern=models.ID_PATTERN)]


def conversation_routes(conversations: Conversations) -> APIRouter:
    """The routes ``direct`` and ``conversations`` of a tenant."""
    routes = APIRouter(prefix="/v1/tenants/{tenant}", tags=["conversations"])

    @routes.get("/direct")
    async def direct_chat(tenant: Tenant, user_id: UserQuery, peer_id: UserQuery) -> DirectAnswer:
        """The id of the direct chat of two users, in either order, and its head once a message was sent."""
        conversation = ids.direct_conversation_id(tenant, user_id, peer_id)
        head = await conversations.conversation(tenant, conversation)
        return DirectAnswer(
            conversation_id=conversation,
            conversation=None if head is None else models.conversation_answer(head),
        )

    @routes.get("/conversations/{conversation}")
    async def conversation_head(tenant: Tenant, conversation: ConversationPath) -> ConversationAnswer:
        """The head of a conversation: last seq, version, policies, how many members."""
        head = await conversations.conversation(tenant, conversation)
        if head is None:
            raise AdmissionRefused("NO_CONVERSATION", "there is no such conversation")
        return models.conversation_answer(head)

    return routes
