"""The OpenAPI document as a page for people: no script, nothing from outside, nothing that can be sent.

It is made once, from the same document that ``/openapi.json`` gives.
"""

from html import escape
from typing import Any

HEADERS = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"}
_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "code{font:13px ui-monospace,monospace}section{border-top:1px solid #ccc;padding:.6rem 0}"
    "h2{margin-top:2rem}h3{margin:.2rem 0}table{border-collapse:collapse}td{padding:.1rem 1rem .1rem 0;"
    "vertical-align:top}.verb{display:inline-block;min-width:4.5rem;font-weight:700}"
    "@media(prefers-color-scheme:dark){body{background:#111;color:#ddd}section{border-color:#444}}"
)


def render(document: dict[str, Any]) -> str:
    """The page of an OpenAPI document."""
    info = document["info"]
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(info['title'])}</title>",
        f"<style>{_STYLE}</style><h1>{escape(info['title'])} {escape(info['version'])}</h1>",
        f"<p>{escape(info['description'])}</p><p>For machines: <a href=/openapi.json>openapi.json</a></p>",
    ]
    tag = None
    for path, verbs in document["paths"].items():
        for verb, operation in verbs.items():
            if operation["tags"][0] != tag:
                tag = operation["tags"][0]
                parts.append(f"<h2>{escape(tag)}</h2>")
            parts.append(_operation(path, verb, operation, document))
    return "".join(parts)


def _operation(path: str, verb: str, operation: dict[str, Any], document: dict[str, Any]) -> str:
    rows = [(one["name"], one["in"], _type(one["schema"])) for one in operation.get("parameters", ())]
    body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    if body is not None:
        schema = document["components"]["schemas"][body["$ref"].rsplit("/", 1)[-1]]
        required = set(schema.get("required", ()))
        rows += [
            (name, "body" if name in required else "body, optional", _type(one))
            for name, one in schema["properties"].items()
        ]
    cells = "".join(
        f"<tr><td><code>{escape(name)}</code><td>{escape(where)}<td>{escape(kind)}"
        for name, where, kind in rows
    )
    key = "" if operation.get("security") else " (no key)"
    return (
        f"<section><h3><span class=verb>{escape(verb.upper())}</span> <code>{escape(path)}</code>{key}</h3>"
        f"<p>{escape(operation.get('description', ''))}</p><table>{cells}</table></section>"
    )


def _type(schema: dict[str, Any]) -> str:
    """A schema in few words."""
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    if "anyOf" in schema:
        return " or ".join(_type(one) for one in schema["anyOf"])
    if schema.get("type") == "array":
        return f"list of {_type(schema['items'])}"
    return str(schema.get("type", schema.get("$ref", "").rsplit("/", 1)[-1]))
