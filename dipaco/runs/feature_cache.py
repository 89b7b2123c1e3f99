"""A cache of document features that the runs of a sweep share, since they share a base model.

The first run that needs features computes them and writes them into `Layout.features`. A run that
is not part of a sweep has no such folder and caches nothing. A file is named by a digest of its
inputs and by its own digest: a damaged one is computed again.
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
    """Features float32 [N, D] of documents under the run's base model on this kind of machine."""
    folder = run.layout.features
    if not folder.is_dir():
        return compute()
    from dipaco.runs.machine import machine

    base = run.plan.base
    (module,) = base.topology.modules
    digest = run.ledger.facts.module(base.name, module, base.phases).parameters.digest
    key = digest_of(digest, machine(), tokens_NT, lengths_N)
    for file in folder.glob(f"{key}-*.npy"):
        if file.stem == f"{key}-{file_digest(file)}":
            return np.load(file)
    features_ND = compute()
    file = folder / f"{key}.{uuid.uuid4().hex}"  # several processes may write at once
    write_whole(file, lambda stream: np.save(stream, features_ND))
    file.rename(folder / f"{key}-{file_digest(file)}.npy")
    return features_ND
