"""Who may do what as an operator, and the record of what was done.

* ``rules``: roles, keys, which role a request needs. * ``keys``: the keys of the settings, read again when
  their file changes. * ``audit``: the append-only file of actions. * ``http``: both in front of an ASGI
  application.
"""
