"""What a block of steps gets from the host: what stays with its rows, and what does not."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest

from dipaco.serving.decoding.batch import BatchRow, RowInputs
from dipaco.serving.decoding.grammar import all_allowed
from dipaco.serving.decoding.request_queue import Stream
from dipaco.serving.decoding.sampling import SamplingSettings
from tests.support.serving_rig import request

VOCAB = 40
DEVICE = jax.local_devices()[-1]


def row(pool_row, grammar=None, **options):
    own = request([1, 2, 3], **options)
    return BatchRow(Stream(own, None), pool_row, [1, 2, 3], 9, np.zeros(20), grammar)


def inputs_of(held, rows, num_rows=4):
    return held.of(rows, num_rows, spare=7, tokens_W=all_allowed(1, VOCAB)[0], device=DEVICE)


def test_the_inputs_of_the_same_rows_are_those_that_the_device_has():
    rows, held = [row(2), row(5)], RowInputs()
    first = inputs_of(held, rows)
    assert {device for each in jax.tree.leaves(first) for device in each.devices()} == {DEVICE}
    again = inputs_of(held, list(rows))
    assert all(a is b for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(again), strict=True))


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: rows[::-1],
        lambda rows: rows[:1],
        lambda rows: [rows[0], row(5, sampling=SamplingSettings(temperature=0.5))],
    ],
    ids=["order", "fewer", "another request in the same row of the pool"],
)
def test_other_rows_have_other_inputs(change):
    rows, held = [row(2), row(5, sampling=SamplingSettings(temperature=1.0))], RowInputs()
    inputs_of(held, rows)
    rows = change(rows)
    inputs = inputs_of(held, rows)
    spare = 4 - len(rows)
    assert inputs["rows_B"].tolist() == [each.pool_row for each in rows] + [7] * spare
    temperatures = [each.stream.request.sampling.temperature for each in rows]
    assert inputs["settings"].temperature_B.tolist() == temperatures + [0.0] * spare


def test_padding_may_change_while_the_rows_stay():
    rows, held = [row(2)], RowInputs()
    inputs_of(held, rows, 4)
    assert inputs_of(held, rows, 2)["rows_B"].tolist() == [2, 7]


def test_the_mask_of_a_grammar_is_that_of_the_moment_and_the_row_knows_which_one_it_is():
    grammar = SimpleNamespace(allowed_W=np.array([1, 0], np.uint32), mask_number=1, must_stop=False)
    rows, held = [row(2), row(5, grammar, min_new_tokens=2, stop_ids=frozenset([9]))], RowInputs()
    first = inputs_of(held, rows)["settings"]
    assert first.allowed_BW[1].tolist() == [1, 0]
    assert first.shortest_B.tolist() == [0, 5, 0, 0]
    grammar.allowed_W, grammar.mask_number = np.array([6, 0], np.uint32), 2
    grammar.must_stop = True
    later = inputs_of(held, rows)["settings"]
    assert later.allowed_BW[1].tolist() == [6, 0]
    assert later.shortest_B.tolist() == [0, 0, 0, 0]
    assert rows[1].mask_number == 2
    assert later.temperature_B is first.temperature_B


def test_dropped_inputs_are_made_again():
    rows, held = [row(2)], RowInputs()
    first = inputs_of(held, rows)
    held.drop()
    again = inputs_of(held, rows)
    assert again["rows_B"] is not first["rows_B"]
    assert again["rows_B"].tolist() == first["rows_B"].tolist()
