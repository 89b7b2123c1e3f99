"""A real Slurm on this machine, for tests: controller, daemon and `munged`, which die with the
process that started them.

One node with the machine's cores, and two partitions: jobs of `urgent` preempt those of `spare`,
which are sent SIGTERM, killed 30 s later (KillWait) and requeued. Debian's package is `slurm-wlm`.
All three run as root.
"""

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Generator, Mapping
from pathlib import Path

from support.servers import free_port

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "squeue", "setpriv")
SETTINGS = """
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CredType=cred/munge
# A job that is requeued waits for so long until its credential has ended; 5 is the least.
AuthInfo=socket={folder}/socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,sched_min_interval=0,bf_interval=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores}
PartitionName=spare Nodes={host} Default=YES PriorityTier=1
PartitionName=urgent Nodes={host} PriorityTier=10 PreemptMode=OFF
"""


class Slurm:
    """A cluster of one node.

    Args:
      folder: of its settings, state and logs.
    """

    def __init__(self, folder: Path):
        self._folder = folder
        self._settings = folder / "slurm.conf"
        self._processes: list[subprocess.Popen] = []
        for name in (folder, folder / "state", folder / "spool"):
            name.mkdir(parents=True)
        text = SETTINGS.format(
            host=socket.gethostname().partition(".")[0], ports=(free_port(), free_port()),
            folder=folder, cores=os.cpu_count(),
        )  # fmt: skip
        self._settings.write_text(text)

    def start(self) -> None:
        at = self._folder
        (at / "key-file").write_bytes(secrets.token_bytes(128))
        (at / "key-file").chmod(0o400)
        names = ("key-file", "socket", "pid-file", "seed-file")
        places = [f"--{name}={at / name}" for name in names]
        # `--force`: it dislikes folders below one that others may write to, as /tmp is.
        self._start("munged", "--foreground", "--force", *places)
        self._until(lambda: (at / "socket").exists(), "munged")
        self._start("slurmctld", "-D")
        self._until(lambda: self.ask("scontrol", "ping").returncode == 0, "slurmctld")
        self._start("slurmd", "-D")
        self._until(lambda: "idle" in self.ask("sinfo", "--noheader").stdout, "slurmd")

    def stop(self) -> None:
        self.ask("scancel", "--user=root")
        with contextlib.suppress(AssertionError):
            self._until(lambda: not self.jobs(), "the jobs")
        for process in reversed(self._processes):
            process.terminate()
            process.wait(timeout=30)

    def ask(
        self, *command: str, variables: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess:
        """Runs a command of Slurm, with `variables` added to its environment."""
        return subprocess.run(
            command, capture_output=True, text=True, cwd=self._folder,
            env=os.environ | dict(variables or {}) | {"SLURM_CONF": str(self._settings)},
        )  # fmt: skip

    def submit(self, *words: str, variables: Mapping[str, str] | None = None) -> str:
        """Submits a job by `sbatch` and returns its number."""
        done = self.ask("sbatch", "--parsable", *words, variables=variables)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def jobs(self) -> list[str]:
        """Those that wait or run, a line each."""
        return self.ask("squeue", "--noheader", "--array").stdout.splitlines()

    def log(self) -> str:
        """Output of the daemons and of the jobs."""
        return "\n".join(file.read_text() for file in sorted(self._folder.glob("*.log")))

    def _start(self, *command: str) -> None:
        with (self._folder / f"{command[0]}.log").open("a") as log:
            process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", *command], stdout=log, stderr=log,
                env=os.environ | {"SLURM_CONF": str(self._settings)},
            )  # fmt: skip
        self._processes.append(process)

    def _until(self, is_so, what: str) -> None:
        deadline = time.monotonic() + 30
        while not is_so():
            has_ended = any(process.poll() is not None for process in self._processes)
            is_late = has_ended or time.monotonic() > deadline
            assert not is_late, f"{what} is not as it should be:\n{self.log()}"
            time.sleep(0.05)


def why_not() -> str | None:
    """Reason why there is no Slurm here, for a test that is skipped, or None."""
    if missing := [program for program in PROGRAMS if _found(program) is None]:
        return f"there is no Slurm here ({', '.join(missing)}): `apt-get install slurm-wlm`"
    if os.getuid() != 0:
        return "there is no Slurm here: its daemons are started by root"
    return None


def _found(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin")


@contextlib.contextmanager
def slurm(folder: Path) -> Generator[Slurm]:
    """A cluster at work."""
    cluster = Slurm(folder)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
