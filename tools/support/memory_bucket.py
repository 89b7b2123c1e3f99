"""A bucket in memory, and the machines of a run that share nothing else. Everything that a machine
sends or fetches is counted.

The machines are folders of one process, and do one task after another. Facts are in one ledger.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from dipaco.config import MODULAR
from dipaco.control.planning.tasks import OF_A_PATH, Claim, Task
from dipaco.receipt import Receipt
from dipaco.runs.run import Run
from dipaco.store.cache import FileCache
from dipaco.store.errors import ObjectDamaged, ObjectMissing
from dipaco.store.layout import kind_of
from dipaco.store.objects import Objects
from dipaco.store.remote import Remote
from dipaco.workers.callbacks import Callbacks
from dipaco.workers.execution import execute
from dipaco.workers.keeping import collect_after
from dipaco.workers.recovery import recover

CACHE_BYTES = 1 << 30


class MemoryBucket(Remote):
    """One machine's way to the bucket.

    Args:
      content: name -> bytes, of all machines.
    """

    def __init__(self, content: dict[str, bytes]):
        self.content = content
        self.url = "memory"
        self.down: Counter[str] = Counter()  # bytes by kind (`store/layout.py`)
        self.up: Counter[str] = Counter()

    def put(self, name: str, file: Path) -> None:
        self.write_new(name, file.read_bytes())

    def fetch(self, receipt: Receipt, name: str, file: Path) -> None:
        found = self.read(name)
        if found is None:
            raise ObjectMissing(file=self.url_of(name), name=receipt.name)
        file.write_bytes(found)

    def write_new(self, name: str, content: bytes) -> bool:
        if name in self.content:
            return False
        self.write(name, content)
        return True

    def write(self, name: str, content: bytes) -> None:
        self.up[kind_of(name)] += len(content)
        self.content[name] = content

    def read(self, name: str) -> bytes | None:
        found = self.content.get(name)
        if found is not None:
            self.down[kind_of(name)] += len(found)
        return found

    def blocks(self, name: str, num_bytes: int) -> Iterator[bytes | None]:
        found = self.read(name)
        yield found if found is None else found[:num_bytes]

    def delete(self, name: str) -> None:
        self.content.pop(name, None)

    def delete_folder(self, name: str) -> None:
        for each in self.names(name):
            del self.content[each]

    def names(self, folder: str) -> list[str]:
        return [name for name in self.content if name.startswith(f"{folder}/")]


class Machine:
    """A machine with a separate folder.

    Args:
      run: the opened run, whose ledger and text all machines share.
      folder: for everything that the machine fetches.
      content: the bucket's.
    """

    def __init__(self, run: Run, folder: Path, content: dict[str, bytes]):
        self.bucket = MemoryBucket(content)
        self.run = Run(run.address, run.requested_config, run.database_location, run.ledger)
        self.run.programs = run.programs
        folder = folder / "run"
        folder.mkdir(parents=True, exist_ok=True)
        self.run.objects = Objects(folder, self.bucket, FileCache(folder.parent, CACHE_BYTES))

    def do(self, claim: Claim) -> None:
        """Executes a claimed task and records what it made, or has a lost input made again."""
        run = self.run
        try:
            facts = execute(run, claim, Callbacks(), lambda: False)
        except (ObjectMissing, ObjectDamaged) as error:
            recover(run, claim, error)
            return
        run.ledger.commit.finish(run.plan, claim, facts)
        collect_after(run, claim, set())


class Machines:
    """A machine for each path of the modular arm, and one for everything else.

    Args:
      run: whose machines they are.
      folder: of their folders.
    """

    def __init__(self, run: Run, folder: Path):
        self.run, self.content, self._folder = run, dict[str, bytes](), folder
        self.of_path = {path: self.new(f"path-{path}") for path in range(run.config.num_paths)}
        self.executor = self.new("executor")

    def new(self, name: str) -> Machine:
        return Machine(self.run, self._folder / name, self.content)

    def machine_of(self, task: Task) -> Machine:
        is_of_path = task.kind in OF_A_PATH and task.arm == MODULAR
        return self.of_path[task.path] if is_of_path else self.executor

    def down(self, kind: str) -> int:
        """Bytes of a kind that the paths' machines have fetched."""
        return sum(machine.bucket.down[kind] for machine in self.of_path.values())

    def up(self, kind: str) -> int:
        """Bytes of a kind that they have sent."""
        return sum(machine.bucket.up[kind] for machine in self.of_path.values())

    def work_until(self, phase: int, is_late: Callable[[Task], bool] = lambda task: False) -> None:
        """Works until all modules have reached a phase."""
        modules, facts = set(self.run.config.topology.modules), self.run.ledger.facts
        work(
            self.run,
            self.machine_of,
            until=lambda: facts.modules_at(MODULAR, phase) == modules,
            is_late=is_late,
        )


def work(
    run: Run,
    machine_of: Callable[[Task], Machine],
    until: Callable[[], bool] = lambda: False,
    is_late: Callable[[Task], bool] = lambda task: False,
) -> None:
    """Does the tasks of a run one after another, each on the machine that `machine_of` names.

    Args:
      until: ends the work early.
      is_late: of which tasks nothing is done until nothing else is left.
    """
    held: list[Claim] = []
    queue = run.ledger.queue
    while queue.unfinished() and not until():
        run.ledger.quorums.end_grace(run.plan)
        claim = queue.claim("machine")
        if claim is not None and is_late(claim.task):
            held.append(claim)
            continue
        claim = claim or held.pop(0)
        machine_of(claim.task).do(claim)
