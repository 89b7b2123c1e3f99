"""What every router promises, held to each kind; a new kind joins by one line in ROUTERS."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import own_router
import pytest

from dipaco.errors import BadSetting
from dipaco.routing.blocks import in_blocks
from dipaco.routing.config import NORMALISATIONS, RoutingConfig
from dipaco.routing.errors import BadFeatures, BadRouterRule, DamagedRouter, TooFewRouterDocuments
from dipaco.routing.own_router import RouterFunctions
from dipaco.routing.router import fit_router, linear_router, load, save
from tests.support.fitted_router import fit_discriminative

ROUTERS = {
    "kmeans": RoutingConfig(kind="kmeans", capacity=1.25),
    "kmeans without bounds": RoutingConfig(kind="kmeans", capacity=None, floor=0),
    "product": RoutingConfig(kind="product_kmeans", capacity=1.25),
    "random": RoutingConfig(kind="random"),
}
OWN = {"own": own_router.nearest, "own, by direction": own_router.by_direction}


@pytest.fixture(scope="module", params=[*ROUTERS, "discriminative", *OWN])
def router(request, heaps):
    if request.param in OWN:
        rule = OWN[request.param](RoutingConfig())
        return fit_router(RoutingConfig(), heaps(400), (2, 2), seed=0, rule=rule)
    if request.param == "discriminative":
        label = fit_router(RoutingConfig(), heaps(400), (2, 2), seed=0).assign(heaps(400))[:, 0]
        return fit_discriminative(RoutingConfig(), heaps(400), label, 4)
    return fit_router(ROUTERS[request.param], heaps(400), (2, 2), seed=0)


def functions_of(router):
    """What reads it: the rule, of one's own."""
    return None if router.own is None else router.own.functions


def test_scores_and_choices_have_their_shapes_and_agree(router, heaps):
    features = heaps(30, seed=1)
    scores, paths = router.scores(features), router.assign(features, num_choices=3)
    assert (scores.shape, scores.dtype) == ((30, router.num_paths), np.float32)
    assert (paths.shape, paths.dtype) == ((30, 3), np.int32)
    in_order = np.take_along_axis(scores, paths, axis=1)
    assert (np.diff(in_order, axis=1) <= 0).all()
    np.testing.assert_array_equal(paths[:, 0], scores.argmax(axis=1))


def test_a_router_says_what_its_scores_are(heaps):
    def fitted(**config):
        return fit_router(RoutingConfig(**config), heaps(400), (4,), seed=0)

    plain = fitted(kind="kmeans", capacity=None, floor=0).score_meaning
    assert plain == "minus the squared distance to a path's centre"
    priced = dataclasses.replace(fitted(kind="kmeans"), price_P=np.arange(4.0))
    assert priced.score_meaning == f"{plain}, and the path's price"
    assert "random" in fitted(kind="random").score_meaning
    weight_DP = np.zeros((8, 4), np.float32)
    assert "classifier" in linear_router("discriminative", weight_DP).score_meaning
    assert "small model" in linear_router("small_models", weight_DP).score_meaning
    rule = own_router.nearest(RoutingConfig())
    own = fit_router(RoutingConfig(), heaps(400), (4,), seed=0, rule=rule)
    assert "this run's own router" in own.score_meaning


def test_the_only_choice_is_the_first_of_several(router, heaps):
    """n = 1 overlap equals none, whichever way the one was found."""
    features = heaps(500, seed=3)
    several = router.assign(features, num_choices=3)
    np.testing.assert_array_equal(router.assign(features)[:, 0], several[:, 0])


def test_a_document_alone_gets_the_scores_it_gets_in_a_batch_bit_for_bit(router, heaps):
    features = heaps(700, seed=2)
    in_batch = router.scores(features)
    for index in (0, 1, 255, 256, 699):
        np.testing.assert_array_equal(
            router.scores(features[index : index + 1])[0], in_batch[index]
        )


@pytest.mark.parametrize(("width", "paths"), [(200, 90), (896, 16)])
def test_a_few_rows_have_the_bits_that_they_have_among_many(width, paths):
    rng = np.random.default_rng(0)
    features, weights = rng.standard_normal((600, width)), rng.standard_normal((width, paths))
    shapes = set()

    def product(block):
        shapes.add(block.shape)
        return block @ weights

    among_many = in_blocks(product, features)
    for count in (1, 9, 40, 300):
        np.testing.assert_array_equal(in_blocks(product, features[:count]), among_many[:count])
    assert len(shapes) == 1


def test_a_loaded_router_is_the_saved_one(router, heaps):
    loaded = load(save(router), functions_of(router))
    features = heaps(50, seed=3)
    assert loaded.version == router.version
    np.testing.assert_array_equal(loaded.scores(features), router.scores(features))


def test_any_flipped_byte_is_refused(router):
    data, functions = save(router), functions_of(router)
    for index in [*range(200), *range(200, len(data), 37), len(data) - 1]:
        flipped = bytearray(data)
        flipped[index] ^= 1
        with pytest.raises(DamagedRouter, match="Fetch it again"):
            load(bytes(flipped), functions)


@pytest.mark.parametrize("data", [b"", b"not a router", b"\x00" * 64])
def test_other_bytes_are_refused(data):
    with pytest.raises(DamagedRouter):
        load(data)


def test_a_router_is_not_read_by_another_rule_than_it_was_fitted_by(heaps):
    rule = own_router.nearest(RoutingConfig())
    plain, own = (fit_router(RoutingConfig(), heaps(9), (2,), 0, each) for each in (None, rule))
    for router, other in ((plain, rule), (own, None)):
        with pytest.raises(DamagedRouter, match="another rule"):
            load(save(router), other)


@pytest.mark.parametrize("normalise", NORMALISATIONS)
def test_the_example_of_an_own_router_is_the_built_in_one(normalise, heaps):
    config = RoutingConfig(normalise=normalise)
    rule = own_router.nearest(config)
    plain, own = (fit_router(config, heaps(400), (2, 2), 7, each) for each in (None, rule))
    np.testing.assert_array_equal(own.scores(heaps(600, seed=1)), plain.scores(heaps(600, seed=1)))
    assert own.version != plain.version


@pytest.mark.parametrize(
    ("fit", "costs", "problem"),
    [
        (lambda *_: 3, None, "returned int, and not arrays by their names"),
        (lambda *_: {"words": np.array(["a"])}, None, "`words` is no array of numbers that a run"),
        pytest.param(
            lambda *_: {"wide": np.zeros(2, np.longdouble)},
            None,
            "`wide` is .* its type is float",
            marks=pytest.mark.skipif(np.finfo(np.longdouble).bits <= 64, reason="it is float64"),
        ),
        (lambda *_: {"half": np.zeros(2, jnp.bfloat16)}, None, "`half` is .* its type is bfloat16"),
        (
            lambda *_: {"centre": np.zeros(2), 7: np.zeros(2)},
            None,
            "named 7, and a name is a string",
        ),
        (lambda *_: {}, lambda _, x_BD: x_BD[:, :3], r"\(9, 3\), and there are 9 .* 4 paths"),
        (lambda *_: {}, lambda _, x_BD: x_BD[:, :4] * np.nan, "a cost is not a number"),
    ],
)
def test_an_own_router_that_gives_no_choice_of_paths_is_refused(fit, costs, problem, heaps):
    with pytest.raises(BadRouterRule, match=problem):
        fit_router(RoutingConfig(), heaps(9), (2, 2), 0, RouterFunctions(fit, costs))
    with pytest.raises(BadRouterRule, match=r"returned int, and not RouterFunctions\(fit, costs\)"):
        fit_router(RoutingConfig(), heaps(9), (2, 2), 0, 3)


@pytest.mark.parametrize(
    "type_code", ["<f4", ">f4", ">f8", ">f2", ">i2", ">i8", ">u4", "<f2", "<u8", "i1", "?"]
)
def test_an_own_router_is_read_as_it_was_fitted_whatever_numbers_it_keeps(type_code, heaps):
    """Big-endian ones too, as some files hold them: they are kept in the order of the machine."""
    kept = np.array([0, 1, 1], type_code)
    rule = RouterFunctions(
        lambda *_: {"kept": kept}, lambda values, x_BD: x_BD[:, :3] * values["kept"]
    )
    fitted = fit_router(RoutingConfig(), heaps(9), (3,), 0, rule)
    loaded = load(save(fitted), rule)
    np.testing.assert_array_equal(loaded.own.values["kept"], kept)
    np.testing.assert_array_equal(loaded.scores(heaps(30)), fitted.scores(heaps(30)))
    assert loaded.version == fitted.version


def test_no_documents_get_no_paths(router):
    assert router.assign(np.zeros((0, 24), np.float32)).shape == (0, 1)


def test_features_of_another_model_are_refused(router):
    with pytest.raises(BadFeatures, match=r"\[documents, 24\]"):
        router.assign(np.zeros((3, 8), np.float32))


def test_features_of_a_model_that_diverged_are_refused(router):
    with pytest.raises(BadFeatures, match="diverged"):
        router.assign(np.full((1, 24), np.nan, np.float32))


def test_more_choices_than_paths_are_refused(router):
    with pytest.raises(BadSetting, match="1 to 4 paths"):
        router.assign(np.zeros((1, 24), np.float32), num_choices=5)


def test_the_same_seed_gives_the_same_version_and_another_values_another(heaps):
    features = heaps(100)
    versions = [fit_router(RoutingConfig(), features, (2, 2), seed).version for seed in (0, 0, 1)]
    assert versions[0] == versions[1]
    assert versions[0] != versions[2]


@pytest.mark.parametrize("config", ROUTERS.values(), ids=ROUTERS)
@pytest.mark.parametrize("choices", [(), (1,), (1, 1)])
def test_one_path_takes_everything(config, choices, heaps):
    router = fit_router(config, heaps(5), choices, seed=0)
    assert router.num_paths == 1
    assert not router.assign(heaps(9, seed=1)).any()


@pytest.mark.parametrize("kind", ["kmeans", "product_kmeans"])
@pytest.mark.parametrize("normalise", NORMALISATIONS)
@pytest.mark.parametrize("choices", [(2, 2), (4, 2)])
def test_the_bounds_hold_on_fitted_documents_and_nearly_on_others(kind, normalise, choices, heaps):
    config = RoutingConfig(kind=kind, normalise=normalise, capacity=1.2, floor=0.5)
    fitted, others = heaps(800), heaps(4000, seed=1)
    router = fit_router(config, fitted, choices, seed=0)

    def shares(features):
        paths = router.assign(features)[:, 0]
        return np.bincount(paths, minlength=router.num_paths) / len(features) * router.num_paths

    assert shares(fitted).max() <= 1.2 + router.num_paths / 800
    assert shares(fitted).min() >= 0.5 - router.num_paths / 800
    assert shares(others).max() <= 1.2 * 1.3
    assert shares(others).min() >= 0.5 * 0.6


def test_fewer_documents_than_paths_is_an_error_that_says_what_to_raise(heaps):
    with pytest.raises(TooFewRouterDocuments, match=r"3 router documents.*\n?.*router_fraction"):
        fit_router(RoutingConfig(), heaps(3), (2, 2), seed=0)


def test_as_many_documents_as_paths_is_enough(heaps):
    router = fit_router(RoutingConfig(), heaps(4), (2, 2), seed=0)
    assert sorted(router.assign(heaps(4))[:, 0]) == [0, 1, 2, 3]


def test_a_vector_too_short_for_the_product_is_an_error(heaps):
    config = RoutingConfig(kind="product_kmeans")
    with pytest.raises(BadFeatures, match="3 levels"):
        fit_router(config, heaps(20)[:, :2], (2, 2, 2), seed=0)
