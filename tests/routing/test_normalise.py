import numpy as np

from dipaco.routing.normalise import fit_normaliser


def test_standardised_dimensions_have_mean_zero_and_deviation_one(heaps):
    features = heaps(300) * 1000 ** np.linspace(-1, 1, 24, dtype=np.float32)
    x_ND = fit_normaliser(features, "standardise").apply(features)
    np.testing.assert_allclose(x_ND.mean(axis=0), 0, atol=1e-4)
    np.testing.assert_allclose(x_ND.std(axis=0), 1, atol=1e-4)


def test_l2_rows_have_length_one_and_a_row_of_zeros_stays(heaps):
    features = np.concatenate([heaps(5), np.zeros((1, 24), np.float32)])
    lengths = np.linalg.norm(fit_normaliser(features, "l2").apply(features), axis=1)
    np.testing.assert_allclose(lengths, [1, 1, 1, 1, 1, 0], atol=1e-6)


def test_none_leaves_features_alone(heaps):
    features = heaps(5)
    np.testing.assert_array_equal(fit_normaliser(features, "none").apply(features), features)


def test_a_constant_dimension_is_not_amplified(heaps):
    features = heaps(50)
    features[:, 3] = 7
    assert np.abs(fit_normaliser(features, "standardise").apply(features)).max() < 10


def test_interleaved_axes_keep_distances_and_deal_variance_out_evenly(heaps):
    features = heaps(300)
    plain = fit_normaliser(features, "none").apply(features)
    dealt = fit_normaliser(features, "none", interleaved_parts=2).apply(features)
    np.testing.assert_allclose(
        np.linalg.norm(dealt[0] - dealt[1]), np.linalg.norm(plain[0] - plain[1]), rtol=1e-5
    )
    variance_D = dealt.var(axis=0)
    first, second = variance_D[:12], variance_D[12:]
    interleaved = np.stack([first, second], axis=1).ravel()
    assert (np.diff(interleaved) <= 1e-6).all()  # axes 0, 2, 4 ... and 1, 3, 5 ...
