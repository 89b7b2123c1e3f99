"""Features of documents, computed once by whichever of several runs of one base model comes first.

Such runs, the rows of a sweep, have a folder for them in common (`Layout.features`); any other run
has none, and nothing is kept. A file is named by what it holds the features of, and by its own
digest: one that is damaged is computed again.
"""

import uuid
from collections.abc import Callable

import numpy as np

from dipaco.files import digest_of, file_digest, write_whole
from dipaco.runs.run import Run


def cached_features(
    run: Run,
    tokens_NT: np.ndarray,
    lengths_N: np.ndarray,
    compute: Callable[[], np.ndarray],
) -> np.ndarray:
    """float32 [N, D] of the documents whose first tokens are given, as the run's base model has
    them on this kind of machine.
    """
    folder = run.layout.features
    if not folder.is_dir():
        return compute()
    from dipaco.runs.programs import machine

    base = run.plan.base
    (module,) = base.topology.modules
    digest = run.ledger.facts.module(base.name, module, base.phases).parameters.digest
    key = digest_of(digest, machine(), tokens_NT, lengths_N)
    for file in folder.glob(f"{key}-*.npy"):
        if file.stem == f"{key}-{file_digest(file)}":
            return np.load(file)
    features_ND = compute()
    file = folder / f"{key}.{uuid.uuid4().hex}"  # several may write at once
    write_whole(file, lambda stream: np.save(stream, features_ND))
    file.rename(folder / f"{key}-{file_digest(file)}.npy")
    return features_ND
