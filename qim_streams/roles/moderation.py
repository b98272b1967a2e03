"""Puts a gateway's way to the writers together: past the applications that want to be asked first, if any.

Spec: §3.
"""

import time
from contextlib import AsyncExitStack

from qim_streams.gateway.before_send import AskingWriters
from qim_streams.gateway.ports import WriterLinks
from qim_streams.runtime import now_ms
from qim_streams.settings import Settings
from qim_streams.webhooks.endpoints import load_webhooks
from qim_streams.webhooks.http_poster import HttpPoster
from qim_streams.webhooks.moderator import Moderator


def asking_first(settings: Settings, writers: WriterLinks, opened: AsyncExitStack) -> WriterLinks:
    """`writers`, or what asks before it hands over; ConfigError for a wrong file of webhooks.

    Call it on the event loop. The connections to applications end with `opened`.
    """
    entries = load_webhooks(settings.webhooks_file).before_send
    if not entries:
        return writers
    poster = HttpPoster()
    opened.push_async_callback(poster.close)
    moderator = Moderator(
        entries,
        poster,
        body_bytes_max=settings.message_body_bytes_max,
        now_ms=now_ms,
        monotonic=time.monotonic,
    )
    return AskingWriters(writers, moderator)
