"""What the tests of the engine on a cluster share."""

from ray_cluster import cluster  # noqa: F401  (a fixture)
