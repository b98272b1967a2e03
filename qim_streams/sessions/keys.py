"""Redis keys of a user's own marks. All of a tenant's lane share a hash tag: one script serves many users.

==================================  ======  ===========================================================
``{q:<tenant>:<lane>}:uc:<ord>``     hash    conversation -> UserConversationState (`sessions.state`); the
                                            field ``.`` says that what the archive had was put back
``{q:<tenant>:<lane>}:pin:<ord>``    zset    conversation -> when it was pinned, ms
``{q:<tenant>:<lane>}:last:<ord>``   string  order of the user's last change: a time in ms, one more
                                            than before where the clock stands or goes back
``{q:<tenant>:<lane>}:dirty``        zset    ``<ord>:<conversation>`` -> version of the state that the
                                            archive may lack
``{q}:lanes``                        zset    ``<tenant>:<lane>`` -> when its dirty list was last added to, ms
==================================  ======  ===========================================================

``<ord>`` is the user's ordinal in decimal. What the projection keeps beside them, ``convs:<ord>`` first of
all, is in the key table of its store. What a user's gateways and the admin API tell each other goes through a
channel named ``sig:<ord>`` behind the same hash tag.

Spec: §9.
"""

from qim_streams.placement import lane_of_ordinal

LANES_KEY = "{q}:lanes"
RESTORED_FIELD = "."  # no id begins with it


def base(tenant_id: str, lane_id: int) -> str:
    """The hash tag of a tenant's lane, with the colon behind it."""
    return f"{{q:{tenant_id}:{lane_id}}}:"


def of_user(tenant_id: str, ordinal: int, what: str) -> str:
    """A user's key of the table: `what` is convs, uc, pin, last or sig."""
    return f"{base(tenant_id, lane_of_ordinal(ordinal))}{what}:{ordinal}"


def dirty_member(ordinal: int, conversation_id: str) -> str:
    """A member of the dirty list."""
    return f"{ordinal}:{conversation_id}"
