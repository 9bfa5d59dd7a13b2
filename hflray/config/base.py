"""The base class of every section: it is frozen, refuses unknown keys, and reads one number as a range."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from hflray import registry
from hflray.errors import ConfigError
from hflray.support.text import breaks_lines


def as_range(value: object) -> object:
    """Return (value, value) for a single number, and any other value unchanged."""
    if isinstance(value, list | tuple) and any(isinstance(end, bool) for end in value):
        raise PydanticCustomError("bool_refused", "true and false are not numbers")
    return (value, value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def unsigned(value: Any) -> Any:
    """Return a value in which each -0.0 is 0.0; NumPy's generators refuse a scale of -0.0."""
    if isinstance(value, float):
        return value + 0.0
    if type(value) in (tuple, list):
        return type(value)(map(unsigned, value))
    return {key: unsigned(each) for key, each in value.items()} if type(value) is dict else value


# The second argument is what the JSON Schema of sweep files says (`hflray.sweep.schema`).
Range = Annotated[tuple[float, float], BeforeValidator(as_range, json_schema_input_type=float | tuple[float, float])]
IntRange = Annotated[tuple[int, int], BeforeValidator(as_range, json_schema_input_type=int | tuple[int, int])]


@dataclass(frozen=True)
class Named:
    """Marks a setting that names something of the registry, such as ``Annotated[str, Named("scheduler")]``.

    The base class of sections then accepts registered names and references only. References in it are relative to the
    sweep file, and their texts are kept with the sweep (`hflray.config.pinning`).

    Attributes:
        kind: the kind of the registry.
        endings: endings of paths that the setting accepts as well, such as ``.npz``.
        keywords: further words that the setting accepts, such as ``global``.
    """

    kind: registry.Kind
    endings: tuple[str, ...] = ()
    keywords: tuple[str, ...] = ()

    def accepts(self, value: Any) -> Any:
        """Return a name, or a tuple of names, with the hash in each reference. Raises ValueError: one is unknown."""
        if isinstance(value, tuple):
            return tuple(self.accepts(name) for name in value)
        if not isinstance(value, str) or value in self.keywords or value.endswith(self.endings or ("\0",)):
            return value
        return registered(self.kind, value, self.keywords)


def registered(kind: registry.Kind, name: str, keywords: tuple[str, ...] = ()) -> str:
    """Return `name` if it is registered, and a reference with the hash of its text.

    Raises:
        ValueError: the name is unknown, and the text lists the keywords and the registered names; or a reference has no
            text.
    """
    try:
        return registry.check(kind, name, words=keywords)
    except ConfigError as error:
        raise ValueError(str(error).removeprefix(f"{kind}: ")) from error


MOST_SAMPLES = 10**9  # of a device, so that sums over devices fit into 64 bits
OF_SEVERAL_LINES = ("description",)
LISTS = ("edge_bandwidths_mhz", "model_kb", "epsilon", "sinks", "hinge")  # tuples that are lists of values, not ranges


class Section(BaseModel):
    """The base class of every section; it is frozen and refuses unknown keys."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, validate_default=True, allow_inf_nan=False, protected_namespaces=()
    )

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_booleans_and_fill_empty_sections(cls, value: Any, info: ValidationInfo) -> Any:
        annotation = cls.model_fields[str(info.field_name)].annotation
        # YAML reads "fleet:" with every line below it commented out as null; it is an empty section.
        if value is None and isinstance(annotation, type) and issubclass(annotation, Section):
            return {}
        # pydantic would accept true as 1.
        if isinstance(value, bool) and annotation not in (bool, Any) and bool not in get_args(annotation):
            raise PydanticCustomError("bool_refused", "true and false are not accepted here")
        return value

    @field_validator("*", mode="before")
    @classmethod
    def _texts_have_one_line(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, str) and info.field_name not in OF_SEVERAL_LINES and breaks_lines(value):
            raise ValueError("accepted: a text without line breaks and control characters; remove them")
        return value

    @field_validator("*", mode="after")
    @classmethod
    def _names_are_known(cls, value: Any, info: ValidationInfo) -> Any:
        marks = [mark for mark in cls.model_fields[str(info.field_name)].metadata if isinstance(mark, Named)]
        return marks[0].accepts(value) if marks else value

    @field_validator("*", mode="after")
    @classmethod
    def _zero_has_no_sign(cls, value: Any) -> Any:
        return unsigned(value)

    @field_validator("*", mode="after")
    @classmethod
    def _range_is_ordered(cls, value: Any, info: ValidationInfo) -> Any:
        is_range = isinstance(value, tuple) and info.field_name not in LISTS
        if is_range and len(value) == 2 and value[0] > value[1]:
            raise ValueError(f"the range is [low, high] and {value[0]} is above {value[1]}; swap them")
        return value
