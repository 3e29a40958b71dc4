"""The documentation of the API as one page without scripts, generated from the OpenAPI document."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping
from typing import Any

STYLE = (
    "body{font:15px/1.55 Inter,system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}"
    "code,pre{font:13px/1.5 ui-monospace,monospace}pre{overflow:auto;border:1px solid #8886;border-radius:8px;"
    "padding:.75rem}summary{cursor:pointer;padding:.35rem 0}.m{display:inline-block;min-width:4.2rem;font-weight:700}"
    "table{border-collapse:collapse}td,th{text-align:left;padding:.2rem .8rem .2rem 0;vertical-align:top}"
)


def docs_page(document: Mapping[str, Any], prefix: str) -> str:
    """The documentation page for an OpenAPI document, as HTML."""
    groups: dict[str, list[str]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            groups.setdefault(operation["tags"][-1], []).append(_operation(prefix + path, method, operation))
    parts = [f"<h2>{_text(tag.capitalize())}</h2>{''.join(made)}" for tag, made in groups.items()]
    models = "".join(
        f'<details id="{_text(name)}"><summary><code>{_text(name)}</code></summary>'
        f"<pre>{_text(json.dumps(schema, indent=2))}</pre></details>"
        for name, schema in sorted(document["components"]["schemas"].items())
    )
    info = document["info"]
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="color-scheme" content="light dark">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Winnow API</title><style>{STYLE}</style><h1>Winnow API</h1>"
        f"<p>{_text(info['description'])}</p><p>Version {_text(info['version'])}. "
        f'Machine-readable: <a href="{prefix}/openapi.json">openapi.json</a>.</p>'
        f"{''.join(parts)}<h2>Models</h2>{models}</html>"
    )


def _operation(path: str, method: str, operation: Mapping[str, Any]) -> str:
    rows = [
        (one["name"], one["in"], json.dumps(one["schema"]), one.get("description", ""))
        for one in operation.get("parameters", ())
    ]
    cells = "".join(
        f"<tr><td><code>{_text(name)}</code><td>{_text(place)}<td><code>{_text(schema)}</code><td>{_text(about)}"
        for name, place, schema, about in rows
    )
    body = operation.get("requestBody", {}).get("content", {})
    received = "".join(f"<p>Body ({_text(kind)}): {_model(one['schema'])}</p>" for kind, one in body.items())
    answers = "".join(
        f"<tr><td>{_text(status)}<td>{_text(answer.get('description', ''))}<td>{_returned(answer)}"
        for status, answer in operation["responses"].items()
    )
    return (
        f'<details><summary><span class="m">{_text(method.upper())}</span> <code>{_text(path)}</code></summary>'
        f"<p>{_text(operation.get('description') or operation.get('summary') or '')}</p>"
        + (f"<table>{cells}</table>" if cells else "")
        + f"{received}<table>{answers}</table></details>"
    )


def _returned(answer: Mapping[str, Any]) -> str:
    return " ".join(_model(one.get("schema", {})) for one in answer.get("content", {}).values())


def _model(schema: Mapping[str, Any]) -> str:
    """A link to the model, or the schema itself."""
    of_list = schema.get("items", {}) if schema.get("type") == "array" else schema
    if reference := of_list.get("$ref"):
        name = str(reference).rsplit("/", 1)[-1]
        return f'{"list of " if of_list is not schema else ""}<a href="#{_text(name)}"><code>{_text(name)}</code></a>'
    return f"<code>{_text(json.dumps(schema))}</code>"


def _text(value: object) -> str:
    return html.escape(str(value))
