"""Which values a field of a request may have, for the answer to one that it may not have."""

import re
from collections.abc import Iterator
from typing import Any

import msgspec.inspect as types


def values_at(kind: Any, where: str) -> list[str]:
    """The words that may stand at a place, `.messages[0].role` for example, of a body of type
    `kind`; none where any may, or no word.
    """
    found = list(_alternatives(types.type_info(kind)))
    for name in re.findall(r"\.(\w+)|\[", where):
        found = [each for one in found for inner in _inside(one, name) for each in inner]
    literals = (one.values for one in found if isinstance(one, types.LiteralType))
    return [value for values in literals for value in values if isinstance(value, str)]


def _alternatives(info: types.Type) -> Iterator[types.Type]:
    if isinstance(info, types.UnionType):
        for each in info.types:
            yield from _alternatives(each)
    else:
        yield info


def _inside(info: types.Type, name: str) -> Iterator[Iterator[types.Type]]:
    """Of a field by its name, or of the items of a list: a place without a name."""
    if isinstance(info, types.StructType) and name:
        if name == info.tag_field and isinstance(info.tag, str):
            yield iter([types.LiteralType((info.tag,))])
        for field in info.fields:
            if field.encode_name == name:
                yield _alternatives(field.type)
    elif isinstance(info, types.ListType) and not name:
        yield _alternatives(info.item_type)
