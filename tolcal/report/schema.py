"""The JSON Schema of ``P.json``, from the types: for scripts and other validators."""

from __future__ import annotations

from typing import Any

import msgspec

from tolcal.report.document import SCHEMA, Document

_SHARE = {
    "anyOf": [{"type": "number", "minimum": 0, "maximum": 1}, {"type": "null"}],
    "description": "Written for readers; ignored when read.",
}


def json_schema() -> dict[str, Any]:
    """Draft 2020-12. A version may gain fields, so unknown ones are allowed, as when read."""
    _, types = msgspec.json.schema_components((Document,), ref_template="#/$defs/{name}")
    proposal, document = types.pop("Proposal"), types.pop("Document")
    beside = {name: field for name, field in document["properties"].items() if name != "proposal"}
    types["Recall"]["properties"] |= {"recall": _SHARE, "detectable_recall": _SHARE}
    version = {"const": SCHEMA, "description": "Version of this format."}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"tolcal: P.json, version {SCHEMA}",
        "description": "A proposal of tolerances, and the verdict of a run if there was one.",
        "type": "object",
        "required": ["schema", *proposal["required"]],
        "properties": {"schema": version, **proposal["properties"], **beside},
        "$defs": types,
    }
