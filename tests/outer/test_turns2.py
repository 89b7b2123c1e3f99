"""turns2: which values have their turn, that none is lost, whose rows they are, what is refused."""

import dataclasses

import numpy as np
import pytest

from dipaco import trees
from dipaco.algorithm import variants
from dipaco.errors import BadSetting
from dipaco.outer.codecs.turns2 import BLOCK, turns2
from dipaco.outer.compress import codec_of, encode_rows, own_parameters
from dipaco.outer.config import OuterSettings
from dipaco.outer.errors import BadEncoding
from dipaco.outer.vocabulary import take_rows
from dipaco.schedule.arm import Arm
from dipaco.topology import Level, ModuleId, Topology

OUTER = OuterSettings(codec="turns2", turns=4, momentum=0.0, learning_rate=1.0)


def some(seed=0):
    draw = np.random.default_rng(seed).standard_normal
    return {
        "block_00": {"w": draw((70, 30), np.float32), "norm": draw(7, np.float32)},
        "embed": {"table": draw((11, 13), np.float32)},
        "head": {"kernel": draw((13, 11), np.float32)},
    }


def sent(gradient, turns, turn):
    of = turns2(turns, turn)
    return of.decode(of.encode(gradient), trees.outline(gradient))


@pytest.mark.parametrize("turns", [1, 2, 9, 64])
def test_every_value_has_one_turn(turns):
    ones = trees.unflatten({name: np.ones_like(leaf) for name, leaf in trees.flatten(some())})
    phases = [dict(trees.flatten(sent(ones, turns, turn))) for turn in range(turns)]
    for name, leaf in trees.flatten(ones):
        np.testing.assert_array_equal(sum(phase[name] for phase in phases), leaf)


def test_a_value_has_its_sign_and_the_mean_of_the_larger_or_of_the_smaller_ones_of_its_block():
    got = sent({"w": np.float32([8, -8, 2, -2, 2])}, 1, 0)["w"]
    np.testing.assert_array_equal(got, [8, -8, 2, -2, 2])
    blocks = np.repeat(np.float32([1, 64, 0]), BLOCK)  # each has magnitudes of its own
    np.testing.assert_array_equal(sent({"w": blocks}, 1, 0)["w"], blocks)


def test_the_same_places_of_a_token_are_sent_whichever_tokens_a_path_has():
    gradient, has_V = some(), np.arange(11) % 3 > 0
    of_all, of_some = (sent(tree, 9, 4) for tree in (gradient, take_rows(gradient, has_V)))
    np.testing.assert_array_equal(
        of_all["embed"]["table"][has_V] != 0, of_some["embed"]["table"] != 0
    )
    np.testing.assert_array_equal(
        of_all["head"]["kernel"][:, has_V] != 0, of_some["head"]["kernel"] != 0
    )


def test_a_path_goes_on_with_what_it_has_not_sent_but_for_rows_of_tokens_that_others_have():
    gradient, sends_V = some(1), np.arange(11) < 5
    encoded = encode_rows(codec_of(OUTER), gradient, some(2), sends_V)
    rows = encoded.residual["embed"]["table"]
    assert not rows[5:].any(), "those are the module's"
    assert rows[:5].any()
    arrived = codec_of(OUTER).decode(encoded.message, take_rows(gradient, sends_V))
    np.testing.assert_allclose(
        encoded.residual["block_00"]["w"] + arrived["block_00"]["w"],
        gradient["block_00"]["w"],
        atol=1e-6,
    )
    own = own_parameters({"a": np.float32([3])}, {"a": np.float32([1])})
    np.testing.assert_array_equal(own["a"], [2])


@pytest.mark.parametrize("alternations", [(), (5,)])
def test_a_single_path_keeps_all_its_steps_and_the_last_phase_brings_them_to_the_module(
    alternations,
):
    """Outer rate 1: after a phase in which all is sent the module is the path, up to two bits."""
    topology = Topology(levels=(Level(name="all", parts=("block_00",)),))
    module, phases, moved = ModuleId("all", 0), 10, []
    start = {module: {"block_00": some()["block_00"]}}

    def moves(path, phase, parts, carried):
        step = some(phase + 50)["block_00"]
        after = {name: np.asarray(parts["block_00"][name]) + step[name] for name in step}
        moved.append(after)
        return {"block_00": after}, carried

    def all_are_sent(phase):
        return phase + 1 == phases or phase + 1 in alternations

    steps = variants.train(
        Arm(
            name="modular",
            topology=topology,
            phases=phases,
            total_steps=phases,
            has_outer_steps=True,
            evaluate_every=1,
            alternations=alternations,
        ),
        start,
        moves,
        lambda phase, _: variants.Shards([1]),
        outer=OUTER,
    )
    gaps = [
        np.sqrt(np.square(modules[module]["block_00"]["w"] - moved[phase]["w"]).mean())
        for phase, modules in enumerate(steps)
    ]
    whole = sum(some(phase + 50)["block_00"]["w"] for phase in range(phases))
    np.testing.assert_allclose(moved[-1]["w"], start[module]["block_00"]["w"] + whole, atol=1e-3)
    for phase, gap in enumerate(gaps):
        assert (gap < 0.75) == all_are_sent(phase), (phase, gaps)


@pytest.mark.parametrize("stream", ["levels", "scales", "largest", "checksum"])
def test_a_damaged_message_is_refused(stream):
    of, gradient = turns2(9, 2), some()
    (tag, message) = next(iter(of.encode(gradient).items()))
    damaged = {name: np.array(leaf) for name, leaf in message.items()}
    damaged[stream].view(np.uint8)[0] ^= 1
    with pytest.raises(BadEncoding, match="checksum"):
        of.decode({tag: damaged}, gradient)
    with pytest.raises(BadEncoding, match="expected"):
        of.decode({tag: message | {stream: damaged[stream][:0]}}, gradient)
    with pytest.raises(BadEncoding):
        turns2(4, 2).decode({tag: message}, gradient)


@pytest.mark.parametrize(
    "settings",
    [{"delay": 1}, {"path_share": 0.5}, {"momentum": 0.9}],
    ids=str,
)
def test_what_does_not_go_with_turns_is_refused(settings):
    (name,) = settings
    with pytest.raises(BadSetting, match=rf"outer\.{name}.*beside `outer\.codec=turns2`"):
        dataclasses.replace(OUTER, **settings)
