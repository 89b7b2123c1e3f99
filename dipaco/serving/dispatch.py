"""Which path takes a prompt, and why. DiPaCo section 2.4: a prompt is routed once, by its first
tokens.
"""

from typing import NamedTuple

import numpy as np

from dipaco.control.release import Release
from dipaco.runs.routing import features, prefix_of, router_of
from dipaco.runs.run import Run


class Choice(NamedTuple):
    """A path, the modules it is made of, and every path's score (higher is better; None: nobody
    asked the router).
    """

    path: int
    modules: tuple[str, ...]
    scores: np.ndarray | None  # float32 [P]

    def describe(self) -> str:
        """Two lines for a person."""
        lines = [f"path {self.path} = {' + '.join(self.modules)}"]
        if self.scores is not None:
            best = np.argsort(-self.scores, kind="stable")[:8]
            told = ", ".join(f"path {path} {self.scores[path]:.2f}" for path in best)
            more = f", and {len(self.scores) - 8} more" if len(self.scores) > 8 else ""
            lines.append(f"router's scores, the best first: {told}{more}")
        return "\n".join(lines)


def dispatch(run: Run, release: Release, prompt: np.ndarray, path: int | None = None) -> Choice:
    """Routes one prompt to a path of a release.

    Args:
      run: the run that the release is of.
      release: what is served.
      prompt: int32 [tokens]; one that is shorter than the prefix is routed by what it has.
      path: take this one and do not ask.

    Raises:
      ReleaseOfOtherRouter: the release was made with another router than the run's.
    """
    scores = None
    if path is None and len(release.paths) == 1:
        path = 0
    if path is None:
        router = router_of(run, release)
        # Alone, not in the batch that documents are routed in: that answers far sooner, and only a
        # prompt right on the border of two paths may fall to the other one, by rounding.
        features_1D = features(run, *prefix_of(run, prompt), batch=1)
        (scores,) = router.scores(features_1D)
        path = int(router.assign(features_1D)[0, 0])
    return Choice(path, tuple(release.paths[path]), scores)
