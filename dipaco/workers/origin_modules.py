"""Modules that a run takes from another one: each module here starts from one there, so that the
paths are the paths that were trained there.
"""

from collections.abc import Mapping

from dipaco.topology import ModuleId, Topology
from dipaco.workers.errors import CannotStartFrom

Sources = Mapping[ModuleId, Mapping[str, ModuleId]]  # module here -> part -> module there


def sources_of(source: str, there: Topology, here: Topology) -> Sources:
    """For every module and part here the module there: the same expert, or the only one.

    Raises:
      CannotStartFrom: it has none, a path would be another than there, or not all would be used.
    """
    owners: dict[str, dict[int, ModuleId]] = {}  # part -> expert -> module
    for module in there.modules:
        for part in there.parts_of(module):
            owners.setdefault(part, {})[module.expert] = module
    found: dict[ModuleId, dict[str, ModuleId]] = {}
    for module in here.modules:
        found[module] = {}
        for part in here.parts_of(module):
            experts = owners[part]
            owner = experts.get(module.expert if len(experts) > 1 else 0)
            if owner is None:
                problem = f"`{part}` has {len(experts)} experts there, so {module} has no"
                raise _refused(source, f"{problem} counterpart")
            found[module][part] = owner
    if problem := _problem(there, here, found):
        raise _refused(source, problem)
    return found


def _problem(there: Topology, here: Topology, sources: Sources) -> str | None:
    """The reason why the paths here are no paths there, or None. If both have as many paths, each
    must be the path of its number, since the router comes along. Otherwise it may be any. A single
    path may leave modules unused.
    """
    own = {module: dict.fromkeys(there.parts_of(module), module) for module in there.modules}
    before, now = _parts_of_paths(there, own), _parts_of_paths(here, sources)
    for path, parts in enumerate(now):
        if len(before) == len(now):
            for part, module in parts.items():
                if module != before[path][part]:
                    return (
                        f"path {path} has `{part}` of {before[path][part]} there and would start "
                        f"with that of {module} here"
                    )
        elif parts not in before:
            modules = " and ".join(sorted({str(module) for module in parts.values()}))
            return f"path {path} would start with {modules}, which no path there has together"
    unused = set(there.modules).difference(*(parts.values() for parts in now))
    if unused and len(now) > 1:
        return f"no path here would start with {', '.join(map(str, sorted(unused)))}"
    return None


def _parts_of_paths(topology: Topology, sources: Sources) -> list[dict[str, ModuleId]]:
    """Part -> module there, for every path."""
    return [
        {p: owner for module in topology.modules_of(path) for p, owner in sources[module].items()}
        for path in range(topology.num_paths)
    ]


def _refused(source: str, problem: str) -> CannotStartFrom:
    base = f"{source.rpartition('@')[0]}@base"
    return CannotStartFrom(
        source=source, problem=f"{problem}. {base} starts any topology from its base model"
    )
