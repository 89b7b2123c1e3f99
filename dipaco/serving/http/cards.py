"""Cards of the server for clients that ask: its models with their levels, and its paths with the
documents that each was trained on.
"""

from dipaco.model.config import num_parameters, part_parameters
from dipaco.serving.http.protocol import (
    LevelCard,
    ModelCard,
    ModelEntry,
    PathCard,
    PathList,
)
from dipaco.serving.models import ServedModel
from dipaco.serving.service import Service


def model_entry(service: Service, model: ServedModel, created_seconds: int) -> ModelEntry:
    """An entry of /v1/models."""
    served = model.releases.current
    topology, per_part = model.topology, part_parameters(service.model)
    total = sum(per_part[part] for m in topology.modules for part in topology.parts_of(m))
    return ModelEntry(
        id=model.name,
        object="model",
        created=created_seconds,
        owned_by="dipaco",
        dipaco=ModelCard(
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
                LevelCard(
                    name=level.name,
                    parts=list(level.parts),
                    modules=[str(m) for m in topology.modules if m.level == level.name],
                )
                for level in topology.levels
                if level.parts
            ],
        ),
    )


def path_list(service: Service, model: ServedModel) -> PathList:
    """The paths of a model, and what each was trained on."""
    served = model.releases.current
    shards = model.shards_of(served)
    total = sum(shard.documents for shard in shards or ())
    cards = []
    for path in range(served.num_paths):
        card = PathCard(path=path, modules=list(served.release.paths[path]))
        if shards is not None:
            shard = shards[path]
            of_domains = max(sum(shard.domains.values()), 1)
            card.documents, card.share = shard.documents, shard.documents / max(total, 1)
            card.domains = {name: number / of_domains for name, number in shard.domains.items()}
        cards.append(card)
    return PathList(object="list", model=model.name, data=cards)
