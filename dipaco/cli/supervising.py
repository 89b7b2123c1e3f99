"""Workers on an engine, kept until the run is finished, and a person told about it: what `train
--workers` and `launch` share.
"""

from collections.abc import Sequence

from dipaco.cli.event_tailer import EventTailer
from dipaco.cli.signals import on_sigterm
from dipaco.launch.engine import Engine
from dipaco.launch.supervisor import Supervisor, WorkerGroup
from dipaco.runs.run import Run


def supervise(
    opened: Run,
    engine: Engine,
    crews: Sequence[WorkerGroup],
    launcher: str,
    *,
    tensorboard: bool = False,
) -> bool:
    """True when the run is finished, False where it was told to stop; then all workers have left.

    Raises:
      WorkersEnded: a person must put something right.
    """
    with EventTailer(opened, tensorboard=tensorboard) as onlooker:
        supervisor = Supervisor(engine, crews, opened.ledger, onlooker.tell, launcher)
        with on_sigterm(supervisor.end):
            try:
                return supervisor.keep_until_finished(onlooker.look)
            finally:
                supervisor.stop()
