"""Windows: every token after the prefix is predicted once, with enough before it."""

import numpy as np
import pytest

from dipaco.data.windows import cut_windows


@pytest.mark.parametrize(("length", "prefix_tokens"), [(8, 3), (5, 4), (64, 32)])
def test_every_token_after_the_prefix_is_in_the_rest_of_one_window(length, prefix_tokens):
    sizes = range(prefix_tokens + 1, prefix_tokens + 3 * length)
    documents = [np.arange(size) + 1000 * number for number, size in enumerate(sizes)]
    windows = cut_windows(documents, length, prefix_tokens)
    assert (windows.lengths > prefix_tokens).all()
    for number, document in enumerate(documents):
        mine = np.flatnonzero(windows.documents == number)
        rows = [windows.tokens[i, : windows.lengths[i]] for i in mine]
        predicted = np.concatenate([row[prefix_tokens:] for row in rows])
        np.testing.assert_array_equal(predicted, document[prefix_tokens:])
        for row in rows:
            np.testing.assert_array_equal(row, np.arange(len(row)) + row[0])
    first = cut_windows(documents, length, prefix_tokens, most=1)
    assert first.documents.tolist() == list(range(len(documents)))
    np.testing.assert_array_equal(first.tokens[-1], documents[-1][:length])
