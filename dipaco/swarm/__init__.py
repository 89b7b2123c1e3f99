"""A path's worker group made of machines that come and go: DeDLOC (arXiv 2106.10207) inside DiPaCo.

To the rest of the house a swarm is one way to run a phase: it takes a path's state, its batches and
its learning rates, and gives the state after them, as `inner.phase.run_phase` does. Inside, a
*group* of *peers* shares the rows of each optimiser step. Its words:

- *block*: neighbouring rows of a step's batch, the smallest piece of work that is leased;
- *peer*: one machine for one session. A *backbone* peer reaches the run, holds state and saves it;
  a *volunteer* computes gradients; a *client* only dials out; an *auxiliary* only adds up;
- *leader*: the backbone that holds the path's `train` task. It leases blocks and closes steps;
- *round*: one averaging. Senders give slices of their summed gradients to *reducers*, by *shares*;
- *lineage*: a name of a state that two peers have in common if and only if they took equal steps.

A group step is exactly the optimiser step of a plain worker: the same rows, each once, whoever
computed them. Pure: `progress`, `shares`, `deadlines`, `leases`, `codecs`. With the world: `passes`
and `wire` (trust), `transport`, `leader` with its `group` and `rounds`, `volunteer`, `backbone`.
May import `inner`, `model`, `control`, `runs`; never `workers` or `serving`.
"""
