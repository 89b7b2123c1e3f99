"""The finished tiny run, opened, and the JSON that a verb prints."""

import json

import pytest

from dipaco.runs.opening import reading


@pytest.fixture(scope="module")
def opened(tiny):
    with reading(tiny.folder) as run:
        yield run


def as_json(ended) -> dict:
    assert ended.code == 0, ended.err
    return json.loads(ended.out)
