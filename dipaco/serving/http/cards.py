"""What the server says of itself: its models with their levels, its paths with the documents that
each was trained on, and the page at /, whose files lie beside this one.
"""

import functools
import importlib.resources

import numpy as np
from starlette.responses import Response

from dipaco.model.config import num_parameters, part_parameters
from dipaco.serving.dispatch import PathChoice, without_start
from dipaco.serving.http import protocol as p
from dipaco.serving.models import ServedModel, ServedRelease
from dipaco.serving.path_admission import PathAdmission
from dipaco.serving.service import Service

# The page connects to this server only.
PAGE = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
    "/picture.js": ("picture.js", "text/javascript"),
}
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; "
    "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-cache",
}


def model_entry(service: Service, model: ServedModel, created_seconds: int) -> p.ModelEntry:
    """An entry of /v1/models."""
    served = model.releases.current
    topology, per_part = model.topology, part_parameters(service.model)
    total = sum(per_part[part] for m in topology.modules for part in topology.parts_of(m))
    return p.ModelEntry(
        id=model.name,
        object="model",
        created=created_seconds,
        owned_by="dipaco",
        dipaco=p.ModelCard(
            arm=model.arm,
            phase=served.release.phase,
            release=served.digest,
            is_routed=model.is_routed,
            num_paths=topology.num_paths,
            context=service.model.max_length,
            prefix_tokens=service.prefix_tokens,
            score_meaning=service.score_meaning(served),
            parameters_per_path=num_parameters(service.model),
            parameters_total=total,
            has_chat=True,
            examples=service.examples,
            levels=[
                p.LevelCard(
                    name=level.name,
                    parts=list(level.parts),
                    modules=[str(m) for m in topology.modules if m.level == level.name],
                )
                for level in topology.levels
                if level.parts
            ],
        ),
    )


def path_list(service: Service, model: ServedModel) -> p.PathList:
    """The paths of a model, and what each was trained on."""
    served = model.releases.current
    shards = model.shards_of(served)
    total = sum(shard.documents for shard in shards or ())
    cards = []
    for path in range(served.num_paths):
        card = p.PathCard(path=path, modules=list(served.release.paths[path]))
        if shards is not None:
            shard = shards[path]
            of_domains = max(sum(shard.domains.values()), 1)
            card.documents, card.share = shard.documents, shard.documents / max(total, 1)
            card.domains = {name: number / of_domains for name, number in shard.domains.items()}
        cards.append(card)
    return p.PathList(object="list", model=model.name, data=cards)


def route_response(
    service: Service, served: ServedRelease, ids: np.ndarray, choice: PathChoice, seconds: float
) -> p.RouteResponse:
    """Where a prompt, int32 [tokens], was routed, in so many seconds."""
    scores = None
    if choice.scores is not None:
        scores = [
            p.PathScore(path=path, score=float(choice.scores[path])) for path in choice.ranking()
        ]
    num_routed = min(len(without_start(ids, service.edges.start)), service.prefix_tokens)
    return p.RouteResponse(
        path=choice.path,
        modules=list(choice.modules),
        scores=scores,
        prompt_tokens=len(ids),
        routed_tokens=num_routed,
        is_guess=scores is not None and num_routed < service.prefix_tokens,
        release=served.digest,
        seconds=seconds,
    )


def readiness(service: Service, paths: PathAdmission) -> p.HealthReply:
    """Whether requests are taken, and the paths whose bytes are not whole."""
    served = service.releases.current
    here = {path: served.modules_of(path) for path in service.paths_of(served)}
    can_serve = any(paths.problem_of(modules) is None for modules in here.values())
    problem = service.loop.problem or (None if can_serve else "no path can be served")
    problem_of = service.health.problem_of
    broken = {str(path): why for path, modules in here.items() if (why := problem_of(modules))}
    detail = {"release_phase": served.release.phase, "paths_not_whole": broken}
    return p.HealthReply(status=problem or "ready", detail=detail)


@functools.cache
def _content(name: str) -> bytes:
    return importlib.resources.files("dipaco.serving.http").joinpath(name).read_bytes()


def page_file(path: str) -> Response:
    """The file at a path of `PAGE`."""
    name, media_type = PAGE[path]
    return Response(_content(name), media_type=media_type, headers=PAGE_HEADERS)
