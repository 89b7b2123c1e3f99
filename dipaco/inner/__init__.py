"""The inner optimisation: AdamW steps of one path on its shard during one phase.

Pairs of pure functions with explicit state. `PathState` is what a path carries from phase to phase,
`make_step` compiles one optimiser step on a mesh, `run_phase` runs tau of them, `early_stopping`
keeps a path's best phase, `absent` freezes rows of tokens that a shard lacks, `synchronous`
averages gradients at every step instead. DiPaCo (arXiv 2403.10616) Algorithm 1 lines 4-10: the
AdamW state belongs to the path, is never averaged and never reset. The room imports `model`,
`topology`, `trees` and `errors`. It knows nothing of stores or tasks.
"""
