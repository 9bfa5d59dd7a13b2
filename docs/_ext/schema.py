"""The JSON Schema of sweep files, with which an editor completes keys and marks mistakes while one writes.

``tune_configs/sweep.schema.json`` holds it, and ``make schema`` writes it anew. A sweep file names it first::

    # yaml-language-server: $schema=sweep.schema.json

The schema knows types, bounds, choices and keys. Only hflray knows the rules that combine several settings, and the
names that other packages register or that refer to files; ``--dry-run`` checks these too.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel

from hflray import metrics, registry
from hflray.config import ExperimentConfig, named_settings
from hflray.config.explanations import sections
from hflray.sweep.sections import EACH_ROUND, SweepFile

# Old editors read this version, and the schema uses nothing of newer ones.
DRAFT = "http://json-schema.org/draft-07/schema#"
# Keys of options may be swept one by one.
FREE = (
    r"^((scheduling|assignment|learning\.teacher|model|world\.[a-z]+|cost\.[a-z]+)\.options|data\.partition_options)\.."
)
# The name of a metric of the user's own.
USERS_NAME: dict[str, Any] = {"pattern": r"^[A-Za-z_][A-Za-z0-9_]*$", "not": {"enum": sorted(metrics.AT_THE_END)}}

Schema = dict[str, Any]


def sweep_schema() -> Schema:
    """Return the schema of a sweep file."""
    schema = SweepFile.model_json_schema(mode="validation")
    experiment = ExperimentConfig.model_json_schema(mode="validation")
    models: dict[str, Schema] = schema.pop("$defs") | experiment.pop("$defs") | {"ExperimentConfig": experiment}
    for model in (schema, *models.values()):
        model["description"] = model["description"].partition("\n\nExamples:")[0]
    owners = {"": "ExperimentConfig"} | {key: section.__name__ for key, section in sections(ExperimentConfig)}
    for key, kind in named_settings().items():  # other names and references stay accepted, see above
        section, _, name = key.rpartition(".")
        setting = models[owners[section]]["properties"][name]
        if setting.get("type") == "string":
            setting["anyOf"] = [{"enum": sorted(registry.BUILTIN[kind])}, {"type": "string"}]
            del setting["type"]
    for section in ("EarlyStoppingConfig", "PopulationConfig"):
        models[section]["properties"]["metric"]["anyOf"] = [{"enum": sorted(EACH_ROUND)}, USERS_NAME]
    models["SearchConfig"]["properties"]["metric"]["anyOf"] = [
        {"enum": sorted(EACH_ROUND + metrics.AT_THE_END)},
        USERS_NAME,
    ]
    models["TuneConfig"]["properties"]["stop"]["propertyNames"] = {"anyOf": [{"enum": sorted(EACH_ROUND)}, USERS_NAME]}
    observers = models["ExperimentConfig"]["properties"]["observers"]
    observers["items"] = {"anyOf": [observers["items"], {"type": "string"}]}
    models["ClockConfig"]["properties"]["edge"] = {
        "anyOf": [{"$ref": "#/$defs/EdgeClockConfig"}, {"enum": ["all", None]}]
    }
    axis = models["Axis"]
    axis |= {"minProperties": 1, "maxProperties": 1}
    for form, value in axis["properties"].items():  # null is the absence of a form, which an author leaves out
        axis["properties"][form] = value["anyOf"][0] | {"description": value["description"]}
    for form in ("grid", "zip", "choice"):
        axis["properties"][form]["minItems"] = 1
    for owner in (schema, *models.values()):
        for name, value in owner["properties"].items():
            if "description" in value:
                value["description"] = " ".join(value["description"].split())
            if "$ref" in value:  # a section may be empty, as when all lines below its key are commented out
                owner["properties"][name] = {"anyOf": [{"$ref": value["$ref"]}, {"type": "null"}]}
    schema["properties"]["experiment"] = {"$ref": "#/$defs/ExperimentConfig"}
    swept = {
        "description": "the values of each swept key",
        "type": "object",
        "properties": {key: _axis_of(place) for key, place in _places(ExperimentConfig).items()},
        "patternProperties": {FREE: {"$ref": "#/$defs/Axis"}},
        "additionalProperties": False,
    }
    schema["properties"]["sweep"] = {"anyOf": [swept, {"type": "null"}]}
    cleaned: Schema = _clean(schema | {"$defs": models})
    return {"$schema": DRAFT, "title": "A sweep file of hflray"} | cleaned


def _places(model: type[BaseModel], prefix: str = "") -> dict[str, str]:
    """Return the place in the schema of every setting and section of the configuration, by dotted key."""
    owners = {"": ExperimentConfig.__name__} | {key: section.__name__ for key, section in sections(model)}
    models: dict[str, type[BaseModel]] = {"": model} | dict(sections(model))
    places = {}
    for key, section in models.items():
        dotted = f"{key}." if key else ""
        for name in section.model_fields:
            places[f"{dotted}{name}"] = f"#/$defs/{owners[key]}/properties/{name}"
    return places


def _axis_of(place: str) -> Schema:
    """Return the schema of the axis of a setting: an axis whose listed values fit the setting."""
    values = {"items": {"$ref": place}}
    return {"allOf": [{"$ref": "#/$defs/Axis"}], "properties": dict.fromkeys(("grid", "zip", "choice"), values)}


def _clean(node: Any) -> Any:
    """Return a schema without pydantic's titles, and with pairs as draft 7 writes them."""
    if isinstance(node, list):
        return [_clean(value) for value in node]
    if not isinstance(node, dict):
        return node
    cleaned = {key: _clean(value) for key, value in node.items() if not (key == "title" and isinstance(value, str))}
    if "prefixItems" in cleaned:
        first, *_ = cleaned.pop("prefixItems")
        cleaned["items"] = first
    return cleaned


def text() -> str:
    """Return the schema as the text of its file."""
    return json.dumps(sweep_schema(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    print(text(), end="")
