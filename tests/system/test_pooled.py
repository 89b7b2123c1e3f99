"""A whole run through a pooler that gives each transaction to any of its connections."""

import pytest

from dipaco.runs.opening import database_location_of
from tests.support.tiny_run import facts, facts_on_server, report


@pytest.mark.slow
def test_a_run_through_a_pooler_ends_with_the_same_facts(
    dipaco, tiny, pooler, postgresql_server, tmp_path
):
    folder = tmp_path / "run"
    ended = dipaco("train", tiny.config, "--run", folder, "--database", pooler.url)
    assert ended.code == 0, ended.err
    place = database_location_of(folder)
    assert place.database == pooler.url
    assert facts_on_server(postgresql_server.url, place.schema) == facts(tiny.folder)
    assert report(folder) == report(tiny.folder)
