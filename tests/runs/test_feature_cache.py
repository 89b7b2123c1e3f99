"""Features that the runs of a sweep share: computed once, and again if a file is damaged."""

import numpy as np
import pytest

from dipaco.files import file_digest
from dipaco.runs import feature_cache as kept

TOKENS, LENGTHS = np.arange(12, dtype=np.int32).reshape(3, 4), np.full(3, 4, np.int32)


class Stub:
    """As much of a run as is asked for: a folder, and a base model with a digest."""

    def __init__(self, root, digest="base"):
        self.layout = self.plan = self.base = self.topology = self
        self.ledger = self.facts = self
        self.parameters, self.digest = self, digest
        self.root, self.features, self.name, self.phases = root, root / "features", "base", 1
        self.modules = ("all/0000",)

    def module(self, *of):
        return self


@pytest.fixture
def ask(tmp_path, monkeypatch):
    """`ask(tokens, digest=...)` -> (features, whether they were computed)."""
    monkeypatch.setattr("dipaco.runs.machine.machine", lambda: "this one")

    def ask(tokens=TOKENS, digest="base"):
        computed = []

        def compute():
            computed.append(True)
            return tokens.astype(np.float32)

        return kept.cached_features(Stub(tmp_path, digest), tokens, LENGTHS, compute), bool(
            computed
        )

    return ask


def test_without_a_folder_no_features_are_cached(ask, tmp_path):
    assert [ask()[1], ask()[1]] == [True, True]
    assert list(tmp_path.iterdir()) == []


def test_features_are_computed_once_per_documents_and_base_model(ask, tmp_path):
    (tmp_path / "features").mkdir()
    first, is_new = ask()
    again, is_new_again = ask()
    assert (is_new, is_new_again) == (True, False)
    np.testing.assert_array_equal(first, again)
    assert first.dtype == again.dtype == np.float32
    assert ask(TOKENS + 1)[1]
    assert ask(digest="another")[1]
    assert len(list((tmp_path / "features").iterdir())) == 3


def test_damaged_features_are_computed_again(ask, tmp_path):
    (tmp_path / "features").mkdir()
    ask()
    (file,) = (tmp_path / "features").iterdir()
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    values, is_new = ask()
    assert is_new
    np.testing.assert_array_equal(values, TOKENS)
    assert file.stem.endswith(file_digest(file))
    assert not ask()[1]
