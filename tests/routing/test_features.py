import jax.numpy as jnp
import numpy as np

from dipaco.routing.features import document_features


def cumulative(tokens_BT):
    """A causal stand-in for the model: hidden state t = (sum of tokens up to t, token t)."""
    tokens_BT = jnp.asarray(tokens_BT, jnp.float32)
    return jnp.stack([jnp.cumsum(tokens_BT, axis=1), tokens_BT], axis=-1)


def test_a_feature_is_the_mean_hidden_state_over_the_prefix():
    features = document_features(cumulative, np.array([[1, 2, 3], [4, 0, 2]]), batch_size=2)
    np.testing.assert_allclose(features, [[10 / 3, 2], [14 / 3, 2]], rtol=1e-6)


def test_padding_of_a_short_document_does_not_count():
    features = document_features(cumulative, np.array([[1, 3, 0, 0]]), np.array([2]), batch_size=3)
    np.testing.assert_allclose(features, [[2.5, 2]])


def test_a_document_of_no_tokens_gets_zeros():
    assert not document_features(cumulative, np.zeros((1, 4), int), np.array([0])).any()


def test_the_model_sees_one_shape_only_and_the_batch_size_changes_nothing():
    tokens_NT = np.random.default_rng(0).integers(1, 9, size=(7, 5))
    shapes = []

    def watched(tokens_BT):
        shapes.append(tokens_BT.shape)
        return cumulative(tokens_BT)

    by_three = document_features(watched, tokens_NT, batch_size=3)
    assert shapes == [(3, 5)] * 3
    np.testing.assert_array_equal(by_three, document_features(cumulative, tokens_NT, batch_size=7))


def test_no_documents_give_no_features():
    assert document_features(cumulative, np.zeros((0, 4), int)).shape == (0, 2)
