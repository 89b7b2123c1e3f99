"""`response_format` of a request, as types: what its answers look like."""

from typing import Any

from msgspec import Struct


class TextFormat(Struct, kw_only=True, forbid_unknown_fields=True, tag="text", tag_field="type"):
    """Any text."""


class ObjectFormat(
    Struct, kw_only=True, forbid_unknown_fields=True, tag="json_object", tag_field="type"
):
    """A JSON object."""


class JsonSchema(Struct, kw_only=True, forbid_unknown_fields=True):
    """The schema that an answer obeys."""

    name: str
    description: str | None = None  # accepted and ignored, as the model is not told
    schema: dict[str, Any] | None = None  # None = any object
    strict: bool | None = None  # accepted: the answer always obeys


class SchemaFormat(
    Struct, kw_only=True, forbid_unknown_fields=True, tag="json_schema", tag_field="type"
):
    """JSON that obeys a schema."""

    json_schema: JsonSchema


ResponseFormat = TextFormat | ObjectFormat | SchemaFormat
