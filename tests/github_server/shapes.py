"""JSON as GitHub forms it: what the tests state, and the required rest from the description.

What is filled in is empty or plainly invalid ("", 0, https://filled.invalid/), so that code which
reads it fails rather than passes by luck.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Mapping
from typing import Any

from github_server.description import document, resolve

FILLED = {"date-time": "1970-01-01T00:00:00Z", "uri": "https://filled.invalid/"}


def fill(schema: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """An object of that schema of the description."""
    filled: dict[str, Any] = _merge({"$ref": f"#/components/schemas/{schema}"}, values)
    return filled


def _merge(schema: Any, values: Any) -> Any:
    schema = _chosen(schema)
    if isinstance(values, Mapping) and "properties" in schema:
        properties = schema["properties"]
        result = {
            key: _merge(properties[key], value) if key in properties else value
            for key, value in values.items()
        }
        for name in schema.get("required", ()):
            if name not in result:
                result[name] = _example(properties.get(name, {}))
        return result
    return values


def _chosen(schema: Any) -> Any:
    """One object schema behind references, alternatives and combinations."""
    schema = resolve(schema)
    for word in ("oneOf", "anyOf"):
        if word in schema:
            return _chosen(schema[word][0])
    if "allOf" in schema:
        parts = [_chosen(part) for part in schema["allOf"]]
        return {
            "type": "object",
            "properties": {k: v for part in parts for k, v in part.get("properties", {}).items()},
            "required": [name for part in parts for name in part.get("required", ())],
        }
    return schema


def _example(schema: Any) -> Any:
    key = schema.get("$ref")
    return copy.deepcopy(_referenced(key)) if key else _plain(schema)


@functools.cache
def _referenced(reference: str) -> Any:
    _, _, kind, name = reference.split("/")
    return _plain(document()["components"][kind][name])


def _plain(schema: Any) -> Any:
    schema = resolve(schema)
    if schema.get("nullable"):
        return None
    if "enum" in schema:
        return schema["enum"][0]
    schema = _chosen(schema)
    match schema.get("type", "object" if "properties" in schema else None):
        case "object":
            properties = schema.get("properties", {})
            return {name: _example(properties[name]) for name in schema.get("required", ())}
        case "array":
            return []
        case "string":
            return FILLED.get(schema.get("format"), "")
        case "integer" | "number":
            return 0
        case "boolean":
            return False
    return None
