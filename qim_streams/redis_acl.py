"""What the roles may do on Redis: the commands that they really use, on keys and channels of ours.

The one list for the embedded server, the containers (`docker/redis/commands`, a test holds it against this)
and operators. A role that is taken over can then read and change what roles read and change, and neither
empty, copy out, reconfigure nor stop the server, nor look for keys that it does not know by name.

Spec: §14.8.
"""

import hashlib
from typing import Final

USER: Final = "qim"
COMMANDS: Final = (
    # strings and keys
    "del", "exists", "get", "incr", "incrby", "mget", "persist", "pexpire", "pexpireat", "pttl", "set",
    # hashes
    "hdel", "hexists", "hget", "hgetall", "hincrby", "hkeys", "hlen", "hmget", "hscan", "hset", "hsetnx",
    "hvals",
    # sets
    "sadd", "smembers", "sscan",
    # sorted sets
    "zadd", "zcard", "zcount", "zmscore", "zrange", "zrangebylex", "zrangebyscore", "zrem",
    "zremrangebyscore", "zrevrange", "zrevrangebyscore", "zscore",
    # streams
    "xadd", "xlen", "xrange", "xrevrange", "xtrim",
    # scripts and transactions
    "eval", "evalsha", "exec", "multi", "script|exists", "script|load",
    # signals
    "publish", "subscribe", "unsubscribe",
    # connections and the server's identity
    "auth", "hello", "info", "ping", "time",
)  # fmt: skip
KEYS: Final = "~{*"  # every key begins with its hash tag
CHANNELS: Final = "&{*"


def rules() -> str:
    """The rules of the user, without name and password."""
    return " ".join(["resetchannels", KEYS, CHANNELS, "-@all", *(f"+{name}" for name in COMMANDS)])


def user_line(password: str) -> str:
    """The line of an ACL file or a redis.conf; it holds a digest of the password."""
    digest = hashlib.sha256(password.encode()).hexdigest()
    return f"user {USER} on #{digest} {rules()}"
