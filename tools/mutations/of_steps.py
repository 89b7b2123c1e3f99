"""Mutants of steps: sums and their order, a path's carried state, quorums, rollback."""

from mutations.mutant import Mutant

ATTENTION = "tests/model/test_attention.py::test_the_kernel_of_tpus_gives_values_and"
EQUALS = "tests/workers/test_equals_algorithm.py::test_every_module_at_every_phase_is_that_of"
EQUALS += "_algorithm_1"
TOGETHER = "tests/workers/test_options_together.py::test_a_run_of_many_options_is_that_of"
TOGETHER += "_algorithm_1"
QUORUMS = "tests/control/test_quorums.py"
RECOVERY = "tests/workers/test_recovery.py"
ROLLBACK = "tests/control/test_rollback.py"
SCHEDULER = "tests/control/test_scheduler.py"

MUTANTS = (
    Mutant(
        name="segments-dropped-on-tpus",
        file="dipaco/model/splash.py",
        old="    if segments_BT is None:\n",
        new="    if True:\n",
        breaks="no token sees another document of its row, in the kernel of TPUs either",
        tests=(f"{ATTENTION}_gradients_of_plain_attention[4-64-256-True]",),
    ),
    Mutant(
        name="sums-in-another-order",
        file="dipaco/workers/stepping.py",
        old="for path in arm.contributors(task.module, task.phase)]",
        new="for path in reversed(arm.contributors(task.module, task.phase))]",
        breaks="contributions are added in path order: the bits are those of Algorithm 1",
        tests=(f"{EQUALS}[diloco]",),
    ),
    Mutant(
        name="weights-all-equal",
        file="dipaco/workers/averaging.py",
        old="            [documents[path] for path in through], by_documents",
        new="            [1 for path in through], by_documents",
        breaks="a path counts by the documents of its shard (DiPaCo eq. 3)",
        tests=(f"{EQUALS}[2x2]",),
    ),
    Mutant(
        name="momentum-forgotten",
        file="dipaco/workers/stepping.py",
        old="    if stored.outer_state is not None:\n",
        new="    if False:\n",
        breaks="a module's momentum goes on from step to step",
        tests=(f"{EQUALS}[2x2]",),
    ),
    Mutant(
        name="fan-in-not-rescaled",
        file="dipaco/outer/step.py",
        old="math.sqrt(fan_in) if settings.rescale_by_fan_in else 1.0",
        new="1.0",
        breaks="the mean is multiplied by the root of the fan-in (DiPaCo 2.7)",
        tests=("tests/outer/test_step.py",),
    ),
    Mutant(
        name="not-a-number-averaged",
        file="dipaco/outer/gradient.py",
        old='        _check_finite("The mean of the outer gradients", total)\n',
        new="",
        breaks="a contribution with a NaN or an infinity is refused and its path trained again",
        tests=(f"{RECOVERY}::test_a_contribution_that_is_wrong_is_refused_and_made_again",),
    ),
    Mutant(
        name="huge-contribution-averaged",
        file="dipaco/workers/averaging.py",
        old="        if norm.whole == math.inf and all(",
        new="        if False and all(",
        breaks="a contribution whose norm overflows is refused: the module would diverge",
        tests=(f"{RECOVERY}::test_a_contribution_that_is_wrong_is_refused_and_made_again",),
    ),
    Mutant(
        name="other-shape-averaged",
        file="dipaco/workers/averaging.py",
        old='            refuse(contribution, f"Its {difference}.")\n',
        new="            pass\n",
        breaks="a contribution of another shape or type is refused",
        tests=(f"{RECOVERY}::test_a_contribution_that_is_wrong_is_refused_and_made_again",),
    ),
    Mutant(
        name="stale-contribution-averaged",
        file="dipaco/workers/tasks/outer.py",
        old="        if contribution.base_digest != digests[contribution.phase]:\n",
        new="        if False:\n",
        breaks="a contribution that started from other parameters is refused",
        tests=("tests/workers/test_equals_algorithm.py",),
    ),
    Mutant(
        name="steps-before-the-alternation",
        file="dipaco/control/planning/scheduler.py",
        old="    if phase in arm.alternations:\n        if all_ready:\n",
        new="    if phase in arm.alternations:\n"
        "        if phase < arm.phases:\n"
        "            yield from _step_without_paths(arm, module, phase, frontier)\n"
        "        if all_ready:\n",
        breaks="a module that no path goes through waits for an alternation too",
        tests=(
            f"{SCHEDULER}::test_with_any_settings_every_task_becomes_due_once_and_the_report_is_last",
        ),
    ),
    Mutant(
        name="two-means-parted-anywhere",
        file="dipaco/outer/codecs/int2.py",
        old="    last_B1 = np.argmax(sums_BL**2",
        new="    last_B1 = np.argmin(sums_BL**2",
        breaks="int2 has the two magnitudes of least squared error",
        tests=("tests/outer/test_few_bits.py",),
    ),
    Mutant(
        name="error-feedback-dropped",
        file="dipaco/outer/compress.py",
        old="        wanted = _each(np.add, gradient, residual)\n",
        new="        pass\n",
        breaks="what a codec loses is added to the path's next contribution",
        tests=("tests/outer/test_compress.py",),
    ),
    Mutant(
        name="checksum-not-checked",
        file="dipaco/outer/codecs/sealed.py",
        old="    if checksum != _checksum(like, leaves):\n",
        new="    if False:\n",
        breaks="a message of which a byte was damaged is refused",
        tests=("tests/workers/test_damaged_messages.py",),
    ),
    Mutant(
        name="residual-not-carried",
        file="dipaco/workers/phase_start.py",
        old="    return Carried(saved) if template is like.optimizer else Carried(**saved)\n",
        new="    if template is like.optimizer:\n        return Carried(saved)\n"
        "    return Carried(**saved)._replace(residual=None)\n",
        breaks="what a codec loses is kept with the path from phase to phase",
        tests=(f"{TOGETHER}[0]",),
    ),
    Mutant(
        name="inner-state-reset",
        file="dipaco/workers/phase_start.py",
        old="        optimizer, residual, own = _carried_state(run, arm, before)\n",
        new="        optimizer, residual, own = _carried_state(run, arm, None)\n",
        breaks="AdamW's state belongs to the path and is never reset",
        tests=(f"{EQUALS}[2x2]",),
    ),
    Mutant(
        name="rows-from-the-beginning",
        file="dipaco/workers/phase_start.py",
        old="        position = before.position\n",
        new="        position = 0\n",
        breaks="a path goes on in its data where its last phase ended",
        tests=(f"{EQUALS}[2x2]",),
    ),
    Mutant(
        name="partial-snapshot-ignored",
        file="dipaco/workers/phase_start.py",
        old="    if saved is None:\n",
        new="    if True:\n",
        breaks="a phase that was stopped goes on from its last step",
        tests=(f"{RECOVERY}::test_a_stopped_phase_goes_on_from_its_partial_snapshot",),
    ),
    Mutant(
        name="trains-before-modules-stepped",
        file="dipaco/control/planning/scheduler.py",
        old="path for path in through if ready.issuperset(arm.topology.modules_of(path))]",
        new="path for path in through]",
        breaks="a path begins a phase when all of its modules have stepped",
        tests=(SCHEDULER,),
    ),
    Mutant(
        name="steps-before-all-are-in",
        file="dipaco/control/database/queries.sql",
        old="       WHERE arm = :arm AND module = :subject AND phase = :phase) = :awaited\n",
        new="       WHERE arm = :arm AND module = :subject AND phase = :phase) >= :awaited - 1\n",
        breaks="a module steps when the contributions of all its paths are in",
        tests=("tests/control/test_commit.py",),
    ),
    Mutant(
        name="steps-before-all-are-in-on-server",
        file="dipaco/control/database/schema/postgresql.sql",
        old="a.phase = o.phase) = o.awaited\n",
        new="a.phase = o.phase) >= o.awaited - 1\n",
        breaks="a module steps when the contributions of all its paths are in (PostgreSQL)",
        tests=("tests/control/test_commit.py",),
    ),
    Mutant(
        name="quorum-one-too-few",
        file="dipaco/control/facts/quorums.py",
        old="if not is_ready or count < step.enough or",
        new="if not is_ready or count + 1 < step.enough or",
        breaks="a module with a quorum waits for that many contributions",
        tests=(QUORUMS,),
    ),
    Mutant(
        name="quorum-rounded-down",
        file="dipaco/schedule/arm.py",
        old="math.ceil(round(self.quorum * paths, 9))",
        new="math.floor(round(self.quorum * paths, 9))",
        breaks="a quorum is a share of the paths, rounded up",
        tests=(SCHEDULER,),
    ),
    Mutant(
        name="late-one-not-awaited",
        file="dipaco/control/facts/quorums.py",
        old=" or count_before < step.awaited_before:",
        new=":",
        breaks="the next step waits for a late contribution: each counts once",
        tests=(QUORUMS,),
    ),
    Mutant(
        name="last-step-leaves-late-ones-out",
        file="dipaco/schedule/arm.py",
        old="        if self.waits_for_all(phase):\n",
        new="        if self.waits_for_all(phase) and phase + 1 != self.phases:\n",
        breaks="the last step waits for all paths: no contribution is left over",
        tests=(SCHEDULER,),
    ),
    Mutant(
        name="step-takes-more-the-second-time",
        file="dipaco/control/facts/quorums.py",
        old='                if not database.rows("taken", **of):\n',
        new="                if True:\n",
        breaks="a step that is done again takes the contributions that it took",
        tests=(QUORUMS,),
    ),
    Mutant(
        name="rollback-keeps-the-phase",
        file="dipaco/control/database/queries.sql",
        old="DELETE FROM {table} WHERE arm = :arm AND phase >= :phase RETURNING *;",
        new="DELETE FROM {table} WHERE arm = :arm AND phase > :phase RETURNING *;",
        breaks="a run that went back to a phase trains that phase again",
        tests=(ROLLBACK,),
    ),
    Mutant(
        name="rollback-under-workers",
        file="dipaco/control/keeping/rollback.py",
        old='            refuse_while_claimed(database, "Going back")\n',
        new="",
        breaks="a run does not go back while a worker holds a task",
        tests=(ROLLBACK,),
    ),
    Mutant(
        name="release-changed",
        file="dipaco/control/database/schema/tables.sql",
        old="CREATE TRIGGER releases_are_immutable BEFORE UPDATE ON releases BEGIN\n",
        new="CREATE TRIGGER releases_are_immutable BEFORE UPDATE OF arm ON releases BEGIN\n",
        breaks="a release never changes",
        tests=("tests/control/test_facts.py",),
    ),
)
