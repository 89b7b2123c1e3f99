"""tau steps: what a path carries to the next phase, the order of the loop, divergence."""

import itertools

import jax
import numpy as np
import pytest

from dipaco.errors import Diverged
from dipaco.inner.optimizer import learning_rates, make_optimizer
from dipaco.inner.phase import run_phase
from dipaco.inner.state import PathState, fresh
from dipaco.inner.step import StepMetrics, make_step


@pytest.fixture
def step(loss_fn, settings):
    return make_step(loss_fn, settings)


@pytest.fixture
def start(parts, settings):
    """A path at its first step; a new one each time, since a step gives its state up."""
    return lambda: fresh(jax.tree.map(jax.numpy.copy, parts), make_optimizer(settings))


def train(state, step, batches, settings, first, count):
    rates = learning_rates(settings, 8, first, count)
    return run_phase(state, batches(first), rates, step)


def test_two_phases_of_four_steps_are_one_of_eight_bit_for_bit(step, start, batches, settings):
    whole = train(start(), step, batches, settings, 0, 8)
    first = train(start(), step, batches, settings, 0, 4)
    second = train(first.state, step, batches, settings, 4, 4)
    jax.tree.map(np.testing.assert_array_equal, second.state, whole.state)
    np.testing.assert_array_equal(np.concatenate([first.losses, second.losses]), whole.losses)
    assert first.targets + second.targets == whole.targets
    assert second.state.step == 8


def test_the_adamw_state_matters_so_it_must_never_be_reset(step, start, batches, settings):
    """Guards the law above: with AdamW state reset, the second phase ends differently."""
    first = train(start(), step, batches, settings, 0, 4)
    forgetful = fresh(jax.tree.map(jax.numpy.copy, first.state.parts), make_optimizer(settings))
    kept = train(first.state, step, batches, settings, 4, 4)
    reset = train(forgetful, step, batches, settings, 4, 4)
    difference = kept.state.parts["w"]["kernel"] - reset.state.parts["w"]["kernel"]
    assert abs(difference).max() > 1e-3


def test_losses_are_reported_in_order_and_targets_counted(step, start, batches, settings):
    told = []
    rates = learning_rates(settings, 8, 0, 5)
    result = run_phase(
        start(), batches(), rates, step, on_step=lambda number, loss: told.append((number, loss))
    )
    assert [number for number, _ in told] == [1, 2, 3, 4, 5]
    np.testing.assert_array_equal(np.float32([loss for _, loss in told]), result.losses)
    expected = sum(batch["weight"].sum() for batch in itertools.islice(batches(), 5))
    assert result.targets == expected


def scripted(losses):
    """A step whose losses are given, and whose gradient norms are twice these; a state that counts
    how often it was called.
    """
    given = iter(losses)

    def step(state, batch, rate):
        loss = next(given)
        return state._replace(step=state.step + 1), StepMetrics(loss, 2 * loss, np.float32(1))

    return step


def run_scripted(losses, on_step=None, **more):
    state = PathState({}, (), 0)
    rates = np.ones(len(losses), np.float32)
    step = scripted(losses)
    return run_phase(state, itertools.repeat({}), rates, step, on_step=on_step, **more)


def test_the_gradient_norm_of_every_step_is_returned():
    assert run_scripted([np.float32(loss) for loss in (3, 1, 2)]).norms == (6.0, 2.0, 4.0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [1, 2, 4])
def test_a_loss_that_is_not_finite_is_divergence_at_that_step_the_last_included(bad, place):
    losses = [np.float32(1.0)] * 4
    losses[place - 1] = np.float32(bad)
    with pytest.raises(Diverged, match=rf"at step {place} of the phase.*inner\.learning_rate"):
        run_scripted(losses)


def test_a_phase_that_goes_on_after_a_stop_counts_on():
    told = []
    losses = [np.float32(1.0), np.float32(2.0), np.float32(np.nan)]
    with pytest.raises(Diverged, match="at step 10 of the phase"):
        run_scripted(losses, on_step=lambda *step: told.append(step), taken=7)
    assert told == [(8, 1.0), (9, 2.0)]


def test_a_step_is_dispatched_before_the_metrics_of_the_last_one_are_fetched():
    order = []
    given = scripted([np.float32(1.0)] * 3)

    def step(state, batch, rate):
        order.append(f"step {state.step + 1}")
        return given(state, batch, rate)

    run_phase(
        PathState({}, (), 0),
        itertools.repeat({}),
        np.ones(3, np.float32),
        step,
        on_step=lambda number, _: order.append(f"numbers {number}"),
    )
    assert order == ["step 1", "step 2", "numbers 1", "step 3", "numbers 2", "numbers 3"]


def test_no_more_batches_are_taken_than_there_are_rates():
    taken = itertools.count()
    batches = ({"number": next(taken)} for _ in itertools.count())
    step = scripted([np.float32(1.0)] * 2)
    run_phase(PathState({}, (), 0), batches, np.ones(2, np.float32), step)
    assert next(taken) == 2


def test_a_phase_of_no_steps_leaves_the_path_as_it_was():
    result = run_scripted([])
    assert (result.state.step, len(result.losses), result.targets) == (0, 0, 0)
