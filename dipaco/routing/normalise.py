"""Normalised features: scale and offset are removed before k-means.

Hidden states of a language model have a few dimensions a hundred times larger than the rest.
k-means on raw features sees only those and sends most documents to one path. DiPaCo does not state
its choice, so it is a setting.

Product k-means cuts the vector in parts. Parts of raw hidden states are redundant (each of them
encodes the language), so features are rotated to principal axes, which the parts take in turn.
"""

import dataclasses
import functools

import numpy as np

from dipaco.routing.blocks import in_blocks


@dataclasses.dataclass(frozen=True, kw_only=True)
class Normaliser:
    """The fitted values: x -> l2((x - mean) / scale) @ rotation."""

    mean_D: np.ndarray  # float32. Zeros if features are not standardised
    scale_D: np.ndarray  # float32, positive. Ones if features are not standardised
    has_unit_length: bool  # True: rows are scaled to length one
    rotation_DE: np.ndarray | None = None  # float32, orthonormal columns

    def apply(self, features_ND: np.ndarray) -> np.ndarray:
        """Raw features [N, D] -> float64 [N, D]. The bits of a row do not depend on its batch."""
        return in_blocks(self._apply_block, features_ND)

    @functools.cached_property
    def _wide_rotation_DE(self) -> np.ndarray | None:
        return None if self.rotation_DE is None else self.rotation_DE.astype(np.float64)

    def _apply_block(self, x_BD: np.ndarray) -> np.ndarray:
        x_BD = (x_BD - self.mean_D) / self.scale_D
        if self.has_unit_length:
            x_BD = x_BD / np.maximum(np.linalg.norm(x_BD, axis=1, keepdims=True), 1e-12)
        return x_BD if self._wide_rotation_DE is None else x_BD @ self._wide_rotation_DE


def fit_normaliser(
    features_ND: np.ndarray, normalise: str, interleaved_parts: int = 1
) -> Normaliser:
    """Fits the normalisation of `RoutingConfig.normalise` to the documents a router is fitted on.

    Args:
      normalise: "standardise" (each dimension to mean 0, deviation 1), "l2" (each row to length
        one), "standardise_l2" (one, then the other) or "none".
      interleaved_parts: 1 leaves the axes unchanged. n > 1 rotates to principal axes, ordered so
        that the first of n contiguous parts holds axes 0, n, 2n ..., the second 1, n+1 ...
    """
    x_ND = features_ND.astype(np.float64)
    num_dims = x_ND.shape[1]
    mean_D, scale_D = np.zeros(num_dims), np.ones(num_dims)
    if normalise in ("standardise", "standardise_l2"):
        mean_D, deviation_D = x_ND.mean(axis=0), x_ND.std(axis=0)
        # A constant dimension is left as it is: dividing by its rounding noise would amplify it.
        scale_D = np.where(deviation_D > 1e-6 * np.abs(mean_D), deviation_D, 1.0)
    normaliser = Normaliser(
        mean_D=mean_D.astype(np.float32),
        scale_D=scale_D.astype(np.float32),
        has_unit_length=normalise in ("l2", "standardise_l2"),
    )
    if interleaved_parts == 1:
        return normaliser
    rotation_DD = _principal_axes(normaliser.apply(features_ND))
    dealt_D = np.concatenate(
        [np.arange(part, num_dims, interleaved_parts) for part in range(interleaved_parts)]
    )
    return dataclasses.replace(normaliser, rotation_DE=rotation_DD[:, dealt_D].astype(np.float32))


def _principal_axes(x_ND: np.ndarray) -> np.ndarray:
    """Orthonormal columns, most variance first. The largest entry of each is positive."""
    centred_ND = x_ND - x_ND.mean(axis=0)
    _, axes_DD = np.linalg.eigh(centred_ND.T @ centred_ND)
    axes_DD = axes_DD[:, ::-1]
    largest_D = axes_DD[np.abs(axes_DD).argmax(axis=0), np.arange(axes_DD.shape[1])]
    return axes_DD * np.where(largest_D < 0, -1.0, 1.0)
