"""Swarms: what a leader counts itself, which peer has which rows, who may come in again."""

from mutations.mutant import Mutant

ASSIGNMENT = "tests/swarm/test_assignment.py"
LOCAL = "tests/swarm/test_local_steps.py"
LEASES = "tests/swarm/test_leases.py"
WIRE = "tests/swarm/test_wire.py"

MUTANTS = (
    Mutant(
        name="block-counts-for-two",
        file="dipaco/swarm/planning/leases.py",
        old="        found.is_done, found.backup = True, None\n",
        new="        found.is_done = True\n",
        breaks="of a block and its backup only the first result counts: no row is in two sums",
        tests=(LEASES,),
    ),
    Mutant(
        name="slow-peer-waited-for",
        file="dipaco/swarm/planning/assignment.py",
        old="    if own > MARGIN * needed:\n",
        new="    if False:\n",
        breaks="a step does not wait for a peer that the others are done before",
        tests=(ASSIGNMENT,),
    ),
    Mutant(
        name="refused-sessions-forgotten",
        file="dipaco/swarm/leading/group.py",
        old="        if is_locking(reasons):\n",
        new="        if False:\n",
        breaks="the third refused session locks a credential",
        tests=("tests/swarm/test_group.py",),
    ),
    Mutant(
        name="any-peer-answers-for-a-newcomer",
        file="dipaco/swarm/network/wire.py",
        old="within_seconds=within, recipient=to)",
        new="within_seconds=within)",
        breaks="where another machine answers, a newcomer is not reached",
        tests=(WIRE,),
    ),
    Mutant(
        name="part-without-connection-not-passed-on",
        file="dipaco/swarm/roles/round_parts.py",
        old="                await self._forward(plan, part, content)\n\n",
        new="                pass\n\n",
        breaks="a sender that reaches the leader alone keeps its rows in every step",
        tests=("tests/swarm/test_reachability.py",),
    ),
    Mutant(
        name="targets-as-the-peer-says",
        file="dipaco/swarm/leading/step_rows.py",
        old="        if done.targets != (has := self.targets[done.block]):\n",
        new="        if False:\n",
        breaks="a peer that counts other targets than the leader is out",
        tests=("tests/swarm/test_group.py",),
    ),
    Mutant(
        name="rows-of-members-mixed",
        file="dipaco/swarm/training/compute.py",
        old="for at in starts for one in steps]",
        new="for one in steps for at in starts]",
        breaks="with local steps a block has one member's rows of all steps",
        tests=(LOCAL,),
    ),
    Mutant(
        name="padding-is-a-step",
        file="dipaco/inner/local_steps.py",
        old="jnp.where(targets > 0, new, old)",
        new="new",
        breaks="local steps that end a phase may be fewer",
        tests=(LOCAL,),
    ),
    Mutant(
        name="sender-late-by-a-reducers-word",
        file="dipaco/swarm/leading/rounds.py",
        old="            if (sender, reducer) in self._forwarded:\n",
        new="            if False:\n",
        breaks="no reducer puts a sender out by saying that it has not got its part",
        tests=("tests/swarm/test_rounds.py",),
    ),
    Mutant(
        name="part-of-another-digest-added-up",
        file="dipaco/swarm/training/slices.py",
        old="    if plan.commitments and digest(content) != plan.commitment(sender, part):\n",
        new="    if False:\n",
        breaks="a part that was changed after its sender had seen others does not count",
        tests=("tests/swarm/test_reducer.py",),
    ),
    Mutant(
        name="means-not-looked-at",
        file="dipaco/swarm/leading/sum_checks.py",
        old="        return has_sketch(plan, part, content, of_parts)\n",
        new="        return True\n",
        breaks="a reducer that gives another mean is found before the step is taken",
        tests=("tests/swarm/test_wrong_sums.py",),
    ),
)
