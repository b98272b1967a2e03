"""The HTTP admin API: groups, direct chats, tokens, conversation heads, message traces, health.

* ``ports``: what the API needs of the rest. * ``models``: requests and answers. * ``failures``: errors as
  ``{code, name, detail, field, retry_after_ms}``. * ``guard``: the API key and the size of bodies.
* ``groups``, ``conversations``, ``messages``, ``tokens``, ``health``: the routes. * ``page``: the
  document for people. * ``app``: all of it in one application; ``server``: on a socket.

Every change goes through the writer that owns the conversation; the API owns nothing.
"""
