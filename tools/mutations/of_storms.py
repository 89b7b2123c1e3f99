"""The storm itself: a fault that never happens, and a checker that sees nothing."""

from mutations.mutant import Mutant

STORM = "tests/system/test_storm.py"
FIRST = f"{STORM}::test_a_training_in_a_storm_ends_with_the_bits_of_algorithm_1"
FAULTS = "tools/storms/faults.py"

MUTANTS = (
    Mutant(
        name="storm-kills-nobody",
        file=FAULTS,
        old="    process = fleet.processes[rng.choice(held).worker]\n    process.send",
        new="    return False\n    process.send",
        breaks="the storm kills workers, and says so when it did not come to it",
        tests=(FIRST,),
    ),
    Mutant(
        name="storm-corrupts-nothing",
        file=FAULTS,
        old="    order.write_text(corruption)\n",
        new="    return False\n",
        breaks="the storm has wrong contributions recorded",
        tests=(FIRST,),
    ),
    Mutant(
        name="storm-flips-nothing",
        file=FAULTS,
        old="    fleet.replace(name, spoil(before))\n",
        new="",
        breaks="the storm damages objects",
        tests=(FIRST,),
    ),
    Mutant(
        name="storm-clocks-stand",
        file=FAULTS,
        old="    clock.jump(next(hours) * 3600)\n",
        new="",
        breaks="the storm has wall clocks jump",
        tests=(FIRST,),
    ),
    Mutant(
        name="storm-spares-executors",
        file=FAULTS,
        old="        self._process.kill()\n",
        new="        return False\n",
        breaks="the storm kills an executor that has read its contributions",
        tests=(FIRST,),
    ),
    Mutant(
        name="storm-gives-tasks-back",
        file="tools/storms/fleet.py",
        old="            self.lives[name].ended = time.monotonic()\n",
        new="            self.lives[name].ended = time.monotonic()\n"
        "            run.ledger.queue.give_back_of(name)\n",
        breaks="nobody gives back what a killed worker held: leases are in the goodput",
        tests=("tests/tools/test_goodput.py",),
    ),
    Mutant(
        name="checker-forgets-what-is-lost",
        file="tools/storms/checker.py",
        old="        lost += max(0, planned - recorded) * batch\n",
        new="",
        breaks="the checker counts rows of text that were not trained on",
        tests=(f"{STORM}::test_the_checker_counts_rows_that_were_lost_and_rows_that_came_twice",),
    ),
)
