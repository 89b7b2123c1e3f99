"""A cell of a run on Ray Serve, which starts more of it as requests wait. Needs the extras `serve`
and `ray` on every machine.

    serve run --name cell-0 --route-prefix /cell-0 ray_cell:cell run=s3://bucket/run paths=0-1,16-17

The router's file then has `"0-1,16-17": {url: "http://HEAD:8000/cell-0"}`.
"""

from ray import serve

from dipaco.serving.http.app import make_app
from dipaco.serving.service import Service, ServiceSettings
from dipaco.topology.cells import paths_in


def app_of(run: str, paths: str):
    """The server of one replica."""
    service = Service(run, ServiceSettings(paths=paths_in(paths)))
    service.start()
    return make_app(service)


def cell(given: dict[str, str]) -> serve.Application:
    """Called by `serve run` with `run`, `paths` and, for machines without GPUs, `gpus=0`."""
    several = serve.deployment(
        ray_actor_options={"num_gpus": float(given.get("gpus", 1))},
        max_ongoing_requests=320,  # 64 rows, and 256 that wait
        autoscaling_config={"min_replicas": 1, "max_replicas": 8, "target_ongoing_requests": 64},
    )
    return several(serve.ingress(lambda: app_of(given["run"], given["paths"]))()).bind()
