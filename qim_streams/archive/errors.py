"""What can go wrong when an archive is opened. Its row in the policy table stands here too.

Spec: §14.8.
"""

from qim_streams.errors import POLICY, ConfigError, Policy


class ArchiveLockedError(ConfigError):
    """Another process has the archive open for writing."""


POLICY[ArchiveLockedError] = Policy.CRASH
