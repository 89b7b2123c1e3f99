"""What happens between phases: each module steps along the mean of how far its paths moved it.

DiPaCo (arXiv 2403.10616) Algorithm 1 lines 11-15 and section 2.7. `gradient` measures and averages,
`compress` makes what is sent smaller, `optimizer` is Nesterov momentum per module, `step` joins
them. May import `trees` and `errors`; knows nothing of models, stores or tasks.
"""
