"""What a volunteer is told of its limit before it fetches anything."""

import dataclasses

from dipaco.model.config import num_parameters
from dipaco.swarm.roles.session import limit_sentence
from tests.support.swarm_rig import SETTINGS


def test_what_a_limit_means_is_said_in_seconds():
    values = num_parameters(SETTINGS.model)
    said = limit_sentence(SETTINGS, 4 * values / 10)  # V in ten seconds
    assert said.startswith(f"at {4 * values / 10 / 125_000:g} Mbit/s the state comes in 30 s")
    assert "20 s to send and fetch" in said
    smaller = dataclasses.replace(SETTINGS, codec="int8")
    assert "5 s to send and fetch" in limit_sentence(smaller, 4 * values / 10)
