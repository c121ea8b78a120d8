"""The JSON Schema of ``tolerances.toml``, from the types: for editors and other validators."""

from __future__ import annotations

from typing import Any

import msgspec

from tolcal.hook.rules import ranges
from tolcal.model import DEVICE_CLASS, DTYPES, NAME, Tolerance
from tolcal.tolerances import SCHEMA

#: Shown by editors beside a key.
DESCRIPTIONS = {
    "atol": "Absolute part of the bound on an element's residual, in the output's unit.",
    "scaled_tol": "Part that grows with |ref| + sigma, in unit roundoffs of the compute dtype.",
    "bias_tol": "Bound on |mean(sign(ref)*(out-ref))| / mean|out-ref|; absent: not judged.",
    "allclose": "atol and rtol for torch.testing.assert_close.",
    "evidence": "What the numbers rest on; written by `tolcal approve`.",
    "approved": "Who let the numbers in; `value` is their digest.",
    "on": "What holds instead on single device classes (sm_90, gfx942, cpu).",
}


def json_schema() -> dict[str, Any]:
    """Draft 7, which Taplo and VS Code understand."""
    _, types = msgspec.json.schema_components((Tolerance,), ref_template="#/definitions/{name}")
    for name in ("Tolerance", "Values"):
        for key, description in DESCRIPTIONS.items():
            field = types[name]["properties"].get(key)
            if field is not None:
                types[name]["properties"][key] = {"allOf": [field], "description": description}
    on = types["Tolerance"]["properties"]["on"]["allOf"][0]
    on["propertyNames"] = {"pattern": f"^(?:{DEVICE_CLASS.pattern})$"}
    limits = {f"limits_{dtype}": _limits(dtype) for dtype in DTYPES}
    cells = {dtype: _cell_of(f"limits_{dtype}") for dtype in DTYPES}
    op = {
        "type": "object",
        "description": "One op: a table for each dtype.",
        "properties": cells,
        "additionalProperties": False,
    }
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "tolcal: tolerances.toml",
        "description": "Measured tolerances of GPU kernels, one table [op.dtype] a cell.",
        "type": "object",
        "required": ["schema"],
        "properties": {"schema": {"const": SCHEMA, "description": "Version of this format."}},
        "propertyNames": {"pattern": f"^(?:{NAME.pattern})$"},
        "additionalProperties": _ref("op"),
        "definitions": {**types, **limits, "op": op},
    }


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/definitions/{name}"}


def _cell_of(limits: str) -> dict[str, Any]:
    overrides = {"properties": {"on": {"additionalProperties": _ref(limits)}}}
    return {"allOf": [_ref("Tolerance"), _ref(limits), overrides]}


def _limits(dtype: str) -> dict[str, Any]:
    """The sensible range of each number, as nested ``properties``."""
    properties: dict[str, Any] = {}
    for keys, sensible in ranges(dtype).items():
        here = properties
        for key in keys[:-1]:
            here = here.setdefault(key, {"properties": {}})["properties"]
        here[keys[-1]] = {"minimum": sensible.low}
        if keys != ("scaled_tol",):  # in units that the evidence may say
            here[keys[-1]]["exclusiveMaximum"] = sensible.high
    return {"properties": properties}
