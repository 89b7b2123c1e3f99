"""Every error a person can cause, in one tree. The docstring of a class is its message.

A message says what came, what was expected and what to do. Errors are raised with named values:

    raise PartUnowned(part="block_07", owned="early = block_01..04")

The command line prints `NameOfTheError: message` and ends with exit code 2. What only this code can break is an
`assert`, not an error.
"""

import errno

# What an OSError is when it is about the file that it names, and not, say, about a process with too
# many of them open.
THE_FILES_FAULT = frozenset(
    {
        errno.EACCES,
        errno.EPERM,
        errno.EROFS,
        errno.EISDIR,
        errno.ENOTDIR,
        errno.ELOOP,
        errno.ENAMETOOLONG,
        errno.EIO,
    }
)


class DipacoError(Exception):
    """Something went wrong that a person can put right."""

    exit_code = 2  # of a command that ends with it

    def __init__(self, **values: object):
        self.values = values
        message = " ".join((type(self).__doc__ or "").split())
        super().__init__(message.format(**values))

    def __reduce__(self):
        return _rebuild, (type(self), self.values)


def _rebuild(kind: type[DipacoError], values: dict[str, object]) -> DipacoError:
    return kind(**values)


# --- topology ---------------------------------------------------------------------------------


class PartUnowned(DipacoError):
    """No level owns `{part}`. Levels own: {owned}. Add it to one of them."""


class PartOwnedTwice(DipacoError):
    """`{part}` is owned by level `{first}` and by level `{second}`. Take it out of one of them."""


class UnknownPart(DipacoError):
    """Level `{level}` owns `{part}`, which the model does not have. It has: {known}."""


class BadTopology(DipacoError):
    """{problem}"""


class BadModuleId(DipacoError):
    """`{text}` is not a module. Expected `level/expert`, for example `early/0003`."""


class StructureMismatch(DipacoError):
    """{what} came back with other parts than it was given: {difference}."""


# --- model ------------------------------------------------------------------------------------


class BadModel(DipacoError):
    """`model.{field}` is {value}. Expected {expected}. {remedy}"""


class BadMesh(DipacoError):
    """A mesh of {asked} does not fit {num_devices} devices. {remedy}"""


class BadCheckpoint(DipacoError):
    """`{folder}` cannot be read as a checkpoint: {problem}. {remedy}"""


class CheckpointExists(DipacoError):
    """`{folder}` is there already; an export never overwrites. Give another, or remove this one."""


class CheckpointIncomplete(DipacoError):
    """`{folder}` lacks {lost}. Remove the folder, and the same command makes it again."""


class ContextTooLong(DipacoError):
    """The prompt has {num_tokens} tokens, and {where} holds {limit}. {remedy}"""


class BadSampling(DipacoError):
    """`{field}` is {value}. Expected {expected}."""


# --- data -------------------------------------------------------------------------------------


class BadDataSetting(DipacoError):
    """`data.{name}` is {value}, but {expected}."""


class BadSource(DipacoError):
    """The data source `{source}` cannot be read: {problem} {advice}"""


class BinaryText(DipacoError):
    """{file} is not UTF-8 text: {problem} at byte {offset}. Convert or remove the file."""


class BadRecord(DipacoError):
    """{file}, {place}: {problem}. Repair or remove that record."""


class MissingColumn(DipacoError):
    """{file} has no column `{column}`; it has {found}. Say which with `?{option}=NAME`."""


class BadTokenizer(DipacoError):
    """The tokenizer {file} cannot be used: {problem}. {advice}"""


class EmptyCorpus(DipacoError):
    """The sources {sources} gave no text. Check that their files exist and are not empty."""


class EmptySplit(DipacoError):
    """No document of more than {prefix_tokens} tokens fell into the split `{split}`, out of {documents} documents in {groups} groups ({short} short). Add text, raise `data.{setting}`, or split by piece with `?group=piece`."""


class CorpusMissing(DipacoError):
    """{folder} holds no finished corpus. Prepare it first: dipaco train CONFIG --run DIR."""


class CorpusOfOtherSettings(DipacoError):
    """{folder} holds a corpus prepared with other settings: {difference}. Use another folder, or delete this one."""


class CorpusDamaged(DipacoError):
    """{file} is damaged: {problem}. Delete the folder {folder}; the command that began the run (`dipaco train`, for a row of a sweep `dipaco ablate`) prepares it anew."""


class EmptyShard(DipacoError):
    """Path {path} has {documents} documents with {tokens} tokens: nothing to train on. Use fewer paths, more text, a lower `routing.capacity`, or a smaller `inner.hold_out`."""


class EmptyHoldOut(DipacoError):
    """Path {path} has {documents} documents and none that is long enough to be held out for early stopping. Use fewer paths, longer documents, or `inner.hold_out=0`."""


class ShardDamaged(DipacoError):
    """The shard {file} is damaged: {problem}. Restore it from a copy of the run folder."""


# --- routing ----------------------------------------------------------------------------------


class BadRoutingSetting(DipacoError):
    """`routing.{setting}` is {value!r}. Expected {expected}."""


class TooFewRouterDocuments(DipacoError):
    """{documents} router documents cannot be divided among {paths} paths. Give at least one a path
    (fifty is better): raise `data.router_fraction`, add text, or take fewer paths.
    """


class BadFeatures(DipacoError):
    """The routing features are {given}, but {expected}. {cure}"""


class DamagedRouter(DipacoError):
    """The router is damaged: {problem}. Fetch it again, or fit it again from the base model."""


# --- evaluation and observe -------------------------------------------------------------------


class NothingToScore(DipacoError):
    """Documents: {documents}, and none goes on after the router's prefix, so there is nothing to
    predict. Give longer documents.
    """


class BadReport(DipacoError):
    """This is not a report that this version can read: {problem}. Make it again with
    `dipaco train`.
    """


class ExtraMissing(DipacoError):
    """{feature} needs the package `{package}`. Install it with `pip install 'dipaco[{extra}]'`."""


# --- configuration ----------------------------------------------------------------------------


class BadSetting(DipacoError):
    """`{name}` is {value!r}. Expected {expected}.{hint}"""


class SettingsDisagree(DipacoError):
    """Two settings do not fit together: {problem}."""


class UnknownSetting(DipacoError):
    """`{name}` is not a setting.{hint}"""


class BadOverride(DipacoError):
    """`--set {text}` is not of the form NAME=VALUE, as in `--set inner.steps=50`."""


class BadConfigFile(DipacoError):
    """The config {file} cannot be used: {problem}."""


# --- store and control ------------------------------------------------------------------------


class LedgerDamaged(DipacoError):
    """The ledger {file} cannot be read: {problem}. Restore it from a copy, or start a new run folder (a base model under `shared/` of a sweep is made again where its folder is removed)."""


class LedgerVersion(DipacoError):
    """The ledger {file} has schema version {found}, this program writes {expected}.
    Use the program version that wrote it last, or start a new run folder.
    """


class LedgerOlder(DipacoError):
    """The ledger {file} has schema version {found}, and this program works with {expected}. `dipaco upgrade --run RUN` brings it there, when the run's workers have left. Nothing was changed."""


class BadDatabase(DipacoError):
    """`{given}` is no database. Give postgresql://HOST/NAME, or env:VARIABLE with such a URL in it; leave it out for SQLite in the run's folder."""


class PasswordOnCommandLine(DipacoError):
    """The URL of {place} has a password in it, and everyone on this machine can read command lines.
    Put the URL into an environment variable and give `env:VARIABLE`, or use PostgreSQL's password file (~/.pgpass).
    """


class VariableMissing(DipacoError):
    """The database is given as `env:{variable}`, and there is no environment variable `{variable}`. Set it to the URL, postgresql://USER:PASSWORD@HOST/NAME."""


class DatabaseRefuses(DipacoError):
    """The database {place} refuses: {problem}. Check user, password and database name."""


class DatabaseUnreachable(DipacoError):
    """The database {place} could not be reached for {seconds:.0f} s: {problem}. What was recorded is safe; start the same command again when it is back."""


class BadName(DipacoError):
    """`{name}` is no name. Take letters, digits, `-`, `_` and `.`, the first a letter or digit, 100 bytes at most."""


class NameTaken(DipacoError):
    """`{name}` is at work on this run already, as process {pid} on {host}. Give another `--name`, or end that one."""

    exit_code = 3  # a launcher tries again later: that one may go


class ClaimLost(DipacoError):
    """Task `{task}` was given to somebody else, or is finished already. Nothing was recorded."""


class OtherBytes(DipacoError):
    """`{task}` was done again, since what it made was lost, and gave other bytes ({new}) than the first time ({known}): this machine, or its libraries, are of another kind. Do it where it was done first, or start again from an earlier phase with --from."""


class KeepsFailing(DipacoError):
    """`{task}` has been done again {times} times, and still {what} is not right: {reason} Look at the disk and the machines; the ledger holds what was recorded before."""


class NotYet(DipacoError):
    """This run has no {what} yet. `dipaco status --run DIR` shows how far it is; `dipaco train` takes it on."""


class NoSuchRelease(NotYet):
    """This run has no release of `{arm}` at phase {phase}. There are those of these phases: {known}."""


class ObjectMissing(DipacoError):
    """{file} is missing. Restore it from a copy of the run folder; nothing else was changed."""


class ObjectDamaged(DipacoError):
    """{file} is not what was written: {problem}. Restore it from a copy of the run folder; nothing was read from it."""


class BadRun(DipacoError):
    """`--run {given}`: {problem}. Give a folder, s3://BUCKET/NAME or gs://BUCKET/NAME."""


class StoreUnreachable(DipacoError):
    """The store {url} could not be reached for {seconds:.0f} s: {problem}. What was recorded is safe; start the same command again when it is back."""


class StoreRefuses(DipacoError):
    """The store {url} refuses: {problem}. Check the credentials in the environment (for S3, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY) and what they allow: reading, writing, deleting and listing."""


class BucketMissing(DipacoError):
    """There is no bucket for {url}. Make it, or check the name, the region (AWS_REGION) and the endpoint (AWS_ENDPOINT_URL)."""


class DatabaseNeeded(DipacoError):
    """The run {run} is in a bucket, where workers on any machine may take part; SQLite serves the processes of one. Say where its facts are: --database postgresql://HOST/NAME, or env:VARIABLE."""


class DiskFull(DipacoError):
    """No space left on the disk of {file}. What was there before is whole.
    Free some space and run the same command again: it goes on from here.
    """


class FileRefused(DipacoError):
    """{file}: {problem}. Check the name, and who may read and write there."""


class NotWritable(DipacoError):
    """Cannot write {file}: {problem}. What was there before is whole."""


# --- serving ----------------------------------------------------------------------------------


class QueueFull(DipacoError):
    """{waiting} requests are waiting already. Try again in {retry_after_seconds} s."""


class LoopStopping(DipacoError):
    """The server is stopping: it finishes what it has and takes nothing new. Try again when it is back."""


class PathCacheTooSmall(DipacoError):
    """One path takes {num_bytes:,} bytes, and all paths together may take {max_bytes:,}. Raise `--path-bytes`."""


class NoRoomForPath(DipacoError):
    """All {pinned} paths in memory are in use. Try again, or raise `--path-bytes`."""


class RunNotHere(DipacoError):
    """{machine} does not see the run's folder {folder}, so its replicas can read no module. Put the run into a bucket, or into a folder that all machines of the cluster share."""


class ReplicasFailed(DipacoError):
    """No replica could be started: {problem}"""


class NoReplica(DipacoError):
    """No replica of the serving loop has been there for {seconds:.0f} s. The cluster may have no room for one, or its machines are lost: look at `ray status`, and try again."""


class ReplicaLost(DipacoError):
    """{tries} replicas were lost in turn while they answered this request. Try again."""


class ReplicaBroke(DipacoError):
    """Something went wrong inside a replica of the serving loop ({problem}); it stands in the log of {replica}."""


class BadReplicas(DipacoError):
    """`--replicas` is {given}. Expected a number, or MIN..MAX with MIN at least 1, as in 1..8."""


class ReleaseMixed(DipacoError):
    """The release of `{arm}` at phase {phase} is not one consistent set: {problem}. It is not served."""


class BadChatTemplate(DipacoError):
    """The chat template {file} cannot be used: {problem}."""


class BadKeyFile(DipacoError):
    """The file of API keys {file} cannot be used: {problem}. Give one key a line."""


class CannotListen(DipacoError):
    """Cannot listen on {where}: {problem}. Give another `{option}`, or stop what listens there."""


# --- swarm ------------------------------------------------------------------------------------


class BadPass(DipacoError):
    """The pass cannot be used: {problem}. {remedy}"""


class MessageRefused(DipacoError):
    """{sender} was refused: {reason}."""


class BadMessage(DipacoError):
    """A message cannot be understood: {problem}."""


class BadAddress(DipacoError):
    """`{given}` is no address of a swarm. To join, give the line that `dipaco swarm start` printed: tcp://HOST:PORT, or /ip4/…/p2p/… To listen: tcp://HOST:PORT, or /ip4/HOST/tcp/PORT, ports to 65535."""


class SwarmUnreachable(DipacoError):
    """None of the backbones answers ({addresses}): {problem}. Check the address and your connection; the group goes on without you."""


class SwarmRefuses(DipacoError):
    """The swarm does not let this machine take part: {reason}"""


class NoSuchName(DipacoError):
    """Nobody has a pass in the name of {name}. There are passes for: {known}."""


class OtherTransport(DipacoError):
    """The swarm of this path is reached at {theirs}, and this backbone would listen on {ours}: its peers could not reach both. Give `--listen` with an address of that kind. If {worker} is dead, `--name {worker}` takes its place."""


class PathNeeded(DipacoError):
    """This run has {paths} paths, and a swarm is the workers of one: say which with --path 0 to {last}."""


# --- launch -----------------------------------------------------------------------------------


class BadCount(DipacoError):
    """`{option}` is {given}. Expected {expected}."""


class TooFewDevices(DipacoError):
    """Workers want {asked} devices here, and {there} of kind {kind} can be seen. Ask for fewer: `--devices-per-worker`, `--workers`."""


class NoCluster(DipacoError):
    """There is no Ray cluster at `{address}`: {problem}. Start one (`ray start --head`), or give `--address HOST:PORT`; `--address local` makes one of this machine."""


class ClusterNeedsServer(DipacoError):
    """The run {run} has its facts in SQLite, which serves the processes of one machine, and the cluster has {machines}. Begin the run with --database postgresql://HOST/NAME, or env:VARIABLE."""


class BadHosts(DipacoError):
    """{problem}. A worker of several hosts is started on each of them with the same `--hosts H` and `--coordinator HOST:PORT`, and `--host-index` 0 to H-1."""


class WorkersEnded(DipacoError):
    """Worker {worker} ended, and another would end like it. Its last words: {words}"""


# --- runs -------------------------------------------------------------------------------------


class NoSuchRun(DipacoError):
    """{folder} holds no run. Begin one: dipaco train CONFIG --run {folder}"""


class NoSuchArm(DipacoError):
    """This run has no arm `{arm}`. It has: {known}."""


class NoSuchPath(DipacoError):
    """There is no path {path}; paths are numbered 0 to {last}."""


class ReleaseOfOtherRouter(DipacoError):
    """The release of `{arm}` at phase {phase} belongs to another router than its paths were trained under.
    Restore the run folder from one copy, or name a path with --path.
    """


class BadPicture(DipacoError):
    """`--picture {file}` does not end as a picture does. Give a file that ends in one of {known}."""


class SweepHere(DipacoError):
    """{folder} holds a sweep, not a run. Its runs are the folders {folder}/rows/NAME/SEED; `dipaco ablate` goes on with it."""


class SweepBusy(DipacoError):
    """Another `dipaco ablate` is working on {folder}. Wait for it or stop it; `dipaco status --run {folder}/rows/NAME/SEED` shows how far a run is."""


class RunBusy(DipacoError):
    """Another process is working on {folder}. Wait for it or stop it; `dipaco status` shows how far it is."""


class RunOfOtherConfig(DipacoError):
    """{folder} holds a run of another config: {difference}. Nothing was changed.
    Give the same config to go on with it, or another folder for a new run.
    """


class RunOfOtherDatabase(DipacoError):
    """The facts of the run in {folder} are in {there}, not in {given}. Leave --database out, or give that one."""


class RunOfOtherVersion(DipacoError):
    """{folder} is a run of dipaco {found}; this is {here}. Nothing was changed.
    Go on with version {found}; or `dipaco upgrade --run RUN` makes it one of {here}, for all its workers.
    """


class WorkersHere(DipacoError):
    """{what} needs a run that nobody works on: {who}. `dipaco drain --run RUN` sends them away in order; then try again. Nothing was changed."""


class CannotRollBack(DipacoError):
    """The run cannot go back to phase {phase}: {problem} Nothing was changed."""


class RunBegunOtherwise(DipacoError):
    """{folder} holds a run that began {how}; `{option}` comes too late. Nothing was changed.
    Leave the option out to go on with it, or give another folder for a new run."""


class CorpusOfOtherText(DipacoError):
    """{folder} holds another corpus than the one this run has trained on: its sources have changed since.
    Restore that folder from a copy, or start a new run folder."""


class ContributionRefused(DipacoError):
    """Path {path} contributed to {module} at phase {phase} what cannot be averaged: {reason} The path is trained again."""


class ContributionMissing(DipacoError):
    """Path {path} has not contributed to {module} at phase {phase} yet."""


class BadEncoding(DipacoError):
    """A contribution cannot be decoded: {problem}."""


class SnapshotOfOtherData(DipacoError):
    """The snapshot of path {path} of `{arm}` counts its position in other data than this run has now.
    Its corpus or shards were changed after it began: restore them, or start a new run folder.
    """


class CannotStartFrom(DipacoError):
    """Cannot start from {source}: {problem}."""


class Diverged(DipacoError):
    """The loss became {loss} at step {step} of the phase; nothing of it was recorded. Lower `inner.learning_rate`."""


class RouterDiverged(DipacoError):
    """The loss of the router for re-routing became {loss} at step {step}; nothing of it was recorded. Lower `reroute.learning_rate` in a new run."""


class ModuleDiverged(DipacoError):
    """The outer step of {module} after phase {phase} made `{name}` infinite or not a number; nothing of it was recorded. Lower `outer.learning_rate` or `inner.learning_rate` in a new run."""


class ArmDiverged(DipacoError):
    """The perplexity of `{arm}` at phase {phase} is {perplexity}: its parameters have diverged. Lower `inner.learning_rate` or `outer.learning_rate` in a new run."""


class NotFinite(DipacoError):
    """{what} holds a NaN or an infinity in `{name}`. Nothing was averaged. Lower `inner.learning_rate` in a new run."""


# --- ablations --------------------------------------------------------------------------------


class BadSweep(DipacoError):
    """The sweep {file} cannot be used: {problem}."""


class NotForSweeps(DipacoError):
    """`--set {name}=...` cannot be given to a sweep: {instead}."""


class BadSeeds(DipacoError):
    """`--seeds {given}`: {problem}. Give whole numbers from 0 on with commas between them, each once, as in 0,1,2."""


class BadJobs(DipacoError):
    """`--jobs` is {given}. Expected 1 or more."""


class NoSuchRow(DipacoError):
    """The sweep `{sweep}` has no row `{name}`. It has: {known}."""


class SweepNeedsFolder(DipacoError):
    """A sweep is kept in a folder of this machine, and {given} is in a bucket. Give a folder; single rows can be run in a bucket with `dipaco train`."""


class NotOfThisSweep(DipacoError):
    """{folder} holds {found}, not the sweep `{sweep}`. Nothing was changed. Give another folder."""


class RowsChanged(DipacoError):
    """{rows} of the sweep changed since it was run in {folder}: {difference}. Nothing was run or changed. `--redo NAME` runs such a row anew and keeps what was there under `replaced`; or give another folder, or undo the change."""


class RowsFailed(DipacoError):
    """{count} of the sweep's runs could not be finished: {problems} The others are whole; the same command goes on with what is left."""
