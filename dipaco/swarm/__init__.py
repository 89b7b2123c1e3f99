"""A path's worker group made of machines that come and go: DeDLOC (arXiv 2106.10207) inside DiPaCo.

To other rooms a swarm is one way to run a phase: it takes a path's state, its batches and its
learning rates, and gives the state after them, as `inner.phase.run_phase` does. Inside, a *group*
of *peers* shares the rows of each optimiser step. A group step is exactly the optimiser step of a
plain worker: the same rows, each once, whichever peer computed them.

- *block*: neighbouring rows of a step's batch, the smallest piece of work that is leased;
- *peer*: one machine for one session. A *backbone* reaches the run, holds state and saves it; a
  *volunteer* computes gradients; a *client* only dials out;
- *leader*: the backbone that holds the path's `train` task. It leases blocks and closes steps;
- *round*: one averaging. Senders push slices of their summed gradients to *reducers*, by *shares*;
- *lineage*: the name of a state. Two peers have it in common if and only if they took equal steps.

Its folders, each importing only those before it: `planning` (pure: shares, leases, progress,
deadlines), `network` (messages, codecs, credentials, wire, transport, finding the leader),
`training` (what every peer does: gradients, the state, slices of rounds), `leading` (what a leader
knows and answers), `roles` (leader, peer, volunteer, backbone, session). cryptography is
imported in `network` only. May import `inner`, `outer`, `model`, `control`,
`runs`; never `workers` or `serving`.
"""
