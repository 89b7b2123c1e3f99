"""Bytes: written before the row, checked at every read, kept as long as something needs them."""

from mutations.mutant import Mutant

OBJECTS = "tests/store/test_objects.py"
CONTRACT = "tests/store/test_objects_contract.py"
RECOVERY = "tests/workers/test_recovery.py"
RETENTION = "tests/control/test_retention.py"
REPRODUCING = "dipaco/control/reproducing.py"

MUTANTS = (
    Mutant(
        name="digest-not-checked",
        file="dipaco/store/verification.py",
        old="    if found != receipt.digest:\n",
        new="    if False:\n",
        breaks="every read compares an object with its digest: a flipped byte would be trained on",
        tests=(OBJECTS,),
    ),
    Mutant(
        name="snapshot-files-not-checked",
        file="dipaco/store/objects.py",
        old="            check_folder(folder, name)\n",
        new="            pass\n",
        breaks="a folder is read only if each of its files has the digest in its list",
        tests=(CONTRACT, "tests/store/test_snapshots.py"),
    ),
    Mutant(
        name="snapshot-values-not-checked",
        file="dipaco/store/snapshots.py",
        old="    if trees.digest(leaves) != digest:\n",
        new="    if False:\n",
        breaks="a snapshot of other values than those recorded is refused",
        tests=("tests/store/test_snapshots.py",),
    ),
    Mutant(
        name="renamed-before-flushed",
        file="dipaco/files.py",
        old="    flush(temporary)\n    rename_durably(temporary, final)\n",
        new="    rename_durably(temporary, final)\n",
        breaks="a name appears only when its bytes are on the disk: a power cut would leave zeros",
        tests=("tests/test_files.py",),
    ),
    Mutant(
        name="commit-not-flushed",
        file="dipaco/control/sqlite.py",
        old="            if is_durable:\n                self.flush()\n",
        new="",
        breaks="a recorded fact outlives a power cut",
        tests=("tests/control/test_database.py",),
    ),
    Mutant(
        name="row-before-upload",
        file="dipaco/store/objects.py",
        old="        self.remote.put(remote_name(receipt), temporary, receipt.digest)\n",
        new="",
        breaks="an object is in the bucket before its receipt is given",
        tests=(CONTRACT,),
    ),
    Mutant(
        name="list-before-files",
        file="dipaco/store/objects.py",
        old="                _transfer_all(put, files)\n"
        "                put(receipt_of(temporary, temporary / DIGESTS))\n",
        new="                put(receipt_of(temporary, temporary / DIGESTS))\n"
        "                _transfer_all(put, files)\n",
        breaks="a folder in a bucket counts once its last file is there",
        tests=(CONTRACT,),
    ),
    Mutant(
        name="deleted-before-recorded",
        file="dipaco/workers/loop.py",
        old="        try:\n            self._run.ledger.commit.finish(",
        new="        try:\n            collect_after(self._run, claim, partial_snapshots)\n"
        "            self._run.ledger.commit.finish(",
        breaks="what a task supersedes is deleted after its facts are recorded, never before",
        tests=("tests/workers/test_loop.py",),
    ),
    Mutant(
        name="lost-input-not-made-again",
        file="dipaco/control/redos.py",
        old='            if state == "done":\n',
        new="            if False:\n",
        breaks="the task that made a damaged object is done again; else the run waits for ever",
        tests=(RECOVERY,),
    ),
    Mutant(
        name="redo-with-other-bytes",
        file=REPRODUCING,
        old="    if row is not None and known != new:\n",
        new="    if False:\n",
        breaks="a task that is done again comes to the recorded bytes, or is refused",
        tests=("tests/control/test_commit.py",),
    ),
    Mutant(
        name="module-of-two-kinds-of-bytes",
        file=REPRODUCING,
        old="    if is_used and to_be_made:\n",
        new="    if False:\n",
        breaks="a module that is made again is made of the same contributions",
        tests=("tests/control/test_reproducing.py",),
    ),
    Mutant(
        name="first-bytes-for-ever",
        file=REPRODUCING,
        old="    if is_used or being_made:\n",
        new="    if True:\n",
        breaks="a contribution of another kind of machine replaces one that nothing was made of",
        tests=("tests/control/test_reproducing.py",),
    ),
    Mutant(
        name="used-bytes-are-replaced",
        file=REPRODUCING,
        old="    if is_used or being_made:\n",
        new="    if False:\n",
        breaks="what a module has stepped with, or is stepping with, stays as it is recorded",
        tests=("tests/control/test_reproducing.py",),
    ),
    Mutant(
        name="redos-counted-for-life",
        file="dipaco/control/failures.py",
        old='    database.change("forget_recoveries", task_id=task_id)\n',
        new="",
        breaks="once a task is done, how often its inputs were made again counts from zero",
        tests=("tests/control/test_reproducing.py",),
    ),
    Mutant(
        name="hosts-do-what-strangers-say",
        file="dipaco/workers/hosts.py",
        old="        if not hmac.compare_digest(signature, self._signature(key, value)):\n",
        new="        if False:\n",
        breaks="the hosts of a worker do only what one of them has signed",
        tests=("tests/workers/test_hosts.py::test_what_a_stranger_writes_is_not_done",),
    ),
    Mutant(
        name="snapshots-one-too-few",
        file="dipaco/control/queries.sql",
        old="ORDER BY phase DESC LIMIT 1 OFFSET :keep;",
        new="ORDER BY phase DESC LIMIT 1 OFFSET :keep - 1;",
        breaks="the newest `retention.snapshots` snapshots of a path are kept",
        tests=(RETENTION,),
    ),
    Mutant(
        name="live-snapshots-one-too-few",
        file="dipaco/control/queries.sql",
        old="WHERE age <= :snapshots\n",
        new="WHERE age < :snapshots\n",
        breaks="cleaning up keeps the newest `retention.snapshots` snapshots of a path",
        tests=(RETENTION,),
    ),
    Mutant(
        name="contributions-a-phase-early",
        file="dipaco/workers/garbage_collection.py",
        old="        of = task.arm, task.module, task.phase + 1, keep.num_contributions\n",
        new="        of = task.arm, task.module, task.phase + 1, keep.num_contributions - 1\n",
        breaks="contributions that would make a damaged module again are kept",
        tests=("tests/workers/test_equals_algorithm.py",),
    ),
    Mutant(
        name="shared-module-deleted",
        file="dipaco/control/queries.sql",
        old="  AND NOT EXISTS (SELECT 1 FROM modules o WHERE o.name = old.name\n",
        new="  AND NOT EXISTS (SELECT 1 FROM modules o WHERE o.name = ''\n",
        breaks="an object that another module has as well is not deleted",
        tests=(RETENTION,),
    ),
    Mutant(
        name="released-module-deleted",
        file="dipaco/workers/garbage_collection.py",
        old="    if phase < 0 or arm.is_evaluated(phase) or arm.stops_early:\n",
        new="    if phase < 0 or arm.stops_early:\n",
        breaks="the modules of a release stay",
        tests=("tests/workers/test_rollback.py",),
    ),
)
