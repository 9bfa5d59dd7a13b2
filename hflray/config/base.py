"""The base class of every section: it is frozen, refuses unknown keys, and reads one number as a range."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self, TypeVar, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from hflray import registry
from hflray.support.text import breaks_lines

MOST_SAMPLES = 10**9  # of a device, so that sums over devices fit into 64 bits
OF_SEVERAL_LINES = ("description",)
Number = TypeVar("Number", int, float)


def _ends(value: Any) -> Any:
    if isinstance(value, list | tuple) and any(isinstance(end, bool) for end in value):
        raise PydanticCustomError("bool_refused", "true and false are not numbers")
    return (value, value) if isinstance(value, int | float) else value


def _ordered(value: Any) -> Any:
    if value[0] > value[1]:
        raise ValueError(f"the range is [low, high] and {value[0]} is above {value[1]}; swap them")
    return value


@dataclass(frozen=True)
class _Pair:
    """Reads a pair of numbers also from one number, which stands for both; a range is ordered."""

    ordered: bool = True

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        pair = handler(source)
        written = core_schema.union_schema([pair["items_schema"][0], pair])
        if self.ordered:
            pair = core_schema.no_info_after_validator_function(_ordered, pair)
        return core_schema.no_info_before_validator_function(_ends, pair, json_schema_input_schema=written)


Pair = Annotated[tuple[Number, Number], _Pair(ordered=False)]
Range = Annotated[tuple[Number, Number], _Pair()]  # as in Range[Positive]
Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True)
class Named:
    """Marks a setting that names something of the registry, such as ``Annotated[str, Named("scheduler")]``.

    It then accepts registered names and references only. References in it are relative to the sweep file, and their
    texts are kept with the sweep (`hflray.config.pinning`).

    Attributes:
        kind: the kind of the registry.
        endings: endings of paths that the setting accepts as well, such as ``.npz``.
        keywords: further words that the setting accepts, such as ``global``.
    """

    kind: registry.Kind
    endings: tuple[str, ...] = ()
    keywords: tuple[str, ...] = ()

    @property
    def accepted(self) -> str:
        """What the setting accepts, in words: what is registered, and your own."""
        paths = (f"a path ending in {ending}" for ending in self.endings)
        users = "your own, as in mine.py:Thing"
        return " | ".join([*self.keywords, *registry.names(self.kind), *paths, users])

    def check(self, value: Any) -> Any:
        """Return a name, or a tuple of names, with the hash in each reference. Raises ValueError: one is unknown."""
        if isinstance(value, tuple):
            return tuple(map(self.check, value))
        if not isinstance(value, str) or value in self.keywords or value.endswith(self.endings or ("\0",)):
            return value
        return registry.checked_name(self.kind, value, self.keywords)

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.check, handler(source))


class Section(BaseModel):
    """The base class of every section; it is frozen and refuses unknown keys.

    A setting's meaning is its ``description``, or the text below it where that is long.
    """

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        validate_default=True,
        allow_inf_nan=False,
        ser_json_inf_nan="constants",
        protected_namespaces=(),
        use_attribute_docstrings=True,
    )

    @field_validator("*", mode="before")
    @classmethod
    def _as_yaml_means_it(cls, value: Any, info: ValidationInfo) -> Any:
        annotation = cls.model_fields[str(info.field_name)].annotation
        # YAML reads "fleet:" with every line below it commented out as null; it is an empty section.
        if value is None and isinstance(annotation, type) and issubclass(annotation, Section):
            return {}
        # pydantic would accept true as 1.
        if isinstance(value, bool) and annotation not in (bool, Any) and bool not in get_args(annotation):
            raise PydanticCustomError("bool_refused", "true and false are not accepted here")
        if isinstance(value, str) and info.field_name not in OF_SEVERAL_LINES and breaks_lines(value):
            raise ValueError("accepted: a text without line breaks and control characters; remove them")
        return value

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        for reason in self.contradictions():
            raise ValueError(reason)
        return self

    def labelled(self, words: str, *leaving_out: str) -> str:
        """Return some words, followed by every setting that is not at its default, so that two sections differ."""
        changed = self.model_dump(exclude_defaults=True, exclude=set(leaving_out))
        return ", ".join([words, *(f"{key} {value}" for key, value in changed.items())])

    def contradictions(self) -> Iterator[str]:
        """Yield what settings that do not go together are, what is accepted and the fix: a message for each."""
        yield from ()


class QuietSection(Section):
    """A section that leaves out some settings while they say nothing, so that hashes stay those of before.

    Attributes:
        quiet: the names of these settings.
    """

    quiet: ClassVar[tuple[str, ...]] = ()

    @model_serializer(mode="wrap")
    def _as_written(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        set_names = [name for name in self.quiet if getattr(self, name) != type(self).model_fields[name].default]
        written: dict[str, Any] = handler(self)
        return {name: value for name, value in written.items() if name in set_names or name not in self.quiet}
