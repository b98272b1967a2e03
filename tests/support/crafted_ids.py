"""Ids and texts that were made to mean something else to somebody: to a key, a path, a query, a reader.

`aliases` are for ids: other spellings of an id, or of an id of another tenant. `INJECTIONS` are for anything
that is text. None of them is what it pretends to be, so whoever takes one for it is wrong.
"""

import unicodedata
from typing import Final

_LOOKALIKES = str.maketrans("aeopcxyiks", "аеорсхуіκѕ")
_WIDE = {ord(c): ord(c) + 0xFEE0 for c in map(chr, range(0x21, 0x7F))}
_BOLD = {ord("a") + at: 0x1D41A + at for at in range(26)}
INVISIBLE: Final = (
    "\u200b", "\u200d", "\u2060", "\ufeff", "\u00ad", "\u202e", "\u2066", "\u200e", "\U000e0061", "\u0301",
    "\ufe0f", "\u0085", "\u2028", "\u00a0",
)  # fmt: skip

INJECTIONS: Final = (
    # SQL and CQL
    "' OR '1'='1", '"; DROP TABLE messages; --', "'; DROP KEYSPACE qim; --", "x' ALLOW FILTERING --",
    "1; SELECT pg_sleep(60)", "\\'; TRUNCATE messages; --", "admin'--", "') UNION SELECT * FROM peers --",
    # names of keys, patterns, ranges and the protocol of Redis
    "*", "?", "[a-z]*", "\\*", "{ob:0}:epoch", "{s:0}:w", "}{x", "{}", "a}b{c", "{ob:0}:c:*", "+inf", "-inf",
    "(1", "[a", "\r\nFLUSHALL\r\n", "\r\n*1\r\n$8\r\nFLUSHALL\r\n", "$-1\r\n", "\nSHUTDOWN NOSAVE\n",
    # Lua
    "redis.call('FLUSHALL')", "'..redis.call('FLUSHALL')..'", "]] redis.call('FLUSHALL') --[[", "KEYS[1]",
    # templates, formats, code
    "${jndi:ldap://127.0.0.1/x}", "{{7*7}}", "%n%n%s%x", "{0.__class__}", "%(levelname)s", "__import__('os')",
    # pages, tables, shells, paths, terminals
    "<script>alert(1)</script>", "javascript:alert(1)", '"><img src=x onerror=alert(1)>',
    "=cmd|' /C calc'!A0", "$(reboot)", "`reboot`", "; reboot", "| reboot", "& reboot", "../../../etc/passwd",
    "/dev/zero", "file:///etc/passwd", "\x1b[2J\x1b]0;pwned\x07",
    # what looks like something else than text
    "NaN", "Infinity", "1e999", "-0", "null", "undefined", "true", "0x10", "\u0661",
)  # fmt: skip
_MARKS: Final = (
    ":", "/", "\\", "|", "\0", "::", "}:", "{", "%3A", "%2F", "%00", "\n", "\t", " ", ",", ";", "#", "&",
)  # fmt: skip


def aliases(own: str, victim: str, name: str) -> list[str]:
    """Other spellings of `name`, and of `name` in tenant `victim` for somebody of tenant `own`."""
    apart = [f"{victim}{mark}{name}" for mark in _MARKS]
    climbing = [
        f"{own}:../{victim}:{name}", f"../{victim}/{name}", f"..%2f{victim}%2f{name}", f"{name}:{victim}",
        f"}}:c:{victim}:{name}", f"{{{victim}}}:{name}", f":{victim}:{name}", f"{name}\0{victim}",
        f"{name}\0",
        f"\0{name}", f"{name}\n", f"{name} ", f" {name}", f"{name}\r\n", f"{name}/", f"/{name}", f"./{name}",
        f".{name}", f"{name}*", f"{name}?", f"[{name[0]}]{name[1:]}", "*", f"-{name}",
    ]  # fmt: skip
    seen = [
        name.translate(_LOOKALIKES), name.translate(_WIDE), name.translate(_BOLD), name.replace("s", "ſ"),
        name.replace("k", "\u212a"), name.replace("i", "ı"), unicodedata.normalize("NFD", name + "é"),
        unicodedata.normalize("NFC", name + "é"), name[::-1].join("\u202e\u202c"),
        *[f"{name}{one}" for one in INVISIBLE], *[f"{name[:1]}{one}{name[1:]}" for one in INVISIBLE[:6]],
    ]  # fmt: skip
    long = [name + "x" * 200, name * 100, "x" * 129, "\U0001f600" * 128, ""]
    return [one for one in dict.fromkeys((*apart, *climbing, *seen, *long)) if one != name]


def other_ids(victim: str, name: str) -> list[str]:
    """Good ids that are not `name`: in another case, and with what other systems take for separators."""
    beside = [f"{victim}{mark}{name}" for mark in ".@~-_"]
    return [name.upper(), name.title(), *beside, f"{name}.", f"{name}-"]
