"""The Ray cluster of three nodes that the launch tests use too."""

from tests.launch.conftest import cluster  # noqa: F401
