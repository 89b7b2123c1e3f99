"""Which test documents are prompts."""

import pytest

from dipaco.data.prompts import MOST_PROMPTS, SampleSettings, prompt_rows
from dipaco.errors import BadSetting

DOMAINS = [2, 0, 1, 0, 0, 1, 2, 0]


def test_the_middle_document_of_each_domain_is_a_prompt_the_largest_domain_first():
    assert prompt_rows(DOMAINS, 3) == [4, 5, 6]


def test_with_fewer_prompts_than_domains_the_largest_have_one():
    """Of two domains of a size that with the lower number, whichever comes first."""
    assert prompt_rows(DOMAINS, 2) == [4, 5]
    assert prompt_rows([1, 0], 1) == [1]


def test_with_more_prompts_than_domains_they_lie_evenly_in_the_largest():
    assert prompt_rows([7] * 100, 4) == [12, 37, 62, 87]
    assert prompt_rows(DOMAINS, 4) == [3, 5, 6, 7]


def test_no_document_is_a_prompt_twice():
    assert sorted(prompt_rows(DOMAINS, 100)) == list(range(len(DOMAINS)))
    assert prompt_rows([], 3) == prompt_rows(DOMAINS, 0) == []


@pytest.mark.parametrize(
    "settings", [{"prompts": -1}, {"prompts": MOST_PROMPTS + 1}, {"tokens": 0}]
)
def test_settings_that_cannot_be_are_refused_by_name(settings):
    (name,) = settings
    with pytest.raises(BadSetting, match=rf"samples\.{name}"):
        SampleSettings(**settings)
