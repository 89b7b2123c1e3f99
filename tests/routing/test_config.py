import pytest

from dipaco.errors import BadSetting
from dipaco.routing.config import RoutingConfig


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("kind", "knn"),
        ("normalise", "whiten"),
        ("capacity", 0.9),
        ("floor", 1.5),
    ],
)
def test_a_bad_setting_is_named_with_what_was_expected(setting, value):
    with pytest.raises(BadSetting, match=rf"`routing.{setting}` is .*Expected"):
        RoutingConfig(**{setting: value})
