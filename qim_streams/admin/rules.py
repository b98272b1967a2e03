"""Roles of operators, their keys, and the role that a request needs. Pure.

reader: sees how the system does, heads and members, never a message's content or a token. operator: what is
done every day, and dead letters with their content. admin: what makes somebody else of an operator (tokens of
users) or changes what a tenant may use.

A key is high entropy of 32 characters or more, so its plain SHA-256 tells nothing; a file of keys holds
digests only.

Spec: §14.9.
"""

import hashlib
import hmac
import re
from collections.abc import Sequence
from enum import IntEnum
from typing import Final, NamedTuple

KEYS_MAX: Final = 200
_NAME: Final = re.compile(r"[A-Za-z0-9._@-]{1,64}")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_ADMIN_ONLY: Final = re.compile(r"/v1/tenants/[^/]+/(tokens|rules)")
_CONTENT: Final = re.compile(r"/v1/dead-letters/[^/]+")
_PLAIN: Final = re.compile(r"[!-~]*")


class Role(IntEnum):
    """A higher one may do everything that a lower one may."""

    READER = 1
    OPERATOR = 2
    ADMIN = 3


class AdminKey(NamedTuple):
    """`digest`: SHA-256 of the key."""

    name: str
    role: Role
    digest: bytes


def parse_keys(text: str) -> list[AdminKey]:
    """The keys of a file: ``name role digest`` per line, # begins a comment. ValueError names the line."""
    keys: dict[str, AdminKey] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        name, role, digest = words if len(words) == 3 else ("", "", "")
        if not _NAME.fullmatch(name) or role.upper() not in Role.__members__ or not _DIGEST.fullmatch(digest):
            raise ValueError(
                f"line {number}: give a name, reader, operator or admin, and 64 hexadecimal digits"
            )
        if name in keys:
            raise ValueError(f"line {number}: {name} is named twice")
        keys[name] = AdminKey(name, Role[role.upper()], bytes.fromhex(digest))
    if len(keys) > KEYS_MAX:
        raise ValueError(f"over {KEYS_MAX} keys")
    return list(keys.values())


def find(keys: Sequence[AdminKey], presented: str) -> AdminKey | None:
    """The key that was presented; every one is compared, so the time says nothing about which."""
    digest = hashlib.sha256(presented.encode("utf-8", "surrogateescape")).digest()
    found = None
    for key in keys:
        if hmac.compare_digest(digest, key.digest):
            found = key
    return found


def needed(method: str, path: str) -> Role:
    """The role that a request needs.

    No path of ours has anything but visible ASCII; a router may see another path in one that has (it matches
    up to a last line feed, for one), so what such a path means is left to the highest role.
    """
    if not _PLAIN.fullmatch(path):
        return Role.ADMIN
    if method in _SAFE:
        return Role.OPERATOR if _CONTENT.fullmatch(path) else Role.READER
    return Role.ADMIN if _ADMIN_ONLY.fullmatch(path) else Role.OPERATOR
