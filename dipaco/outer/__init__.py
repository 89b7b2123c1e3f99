"""The outer step: between phases, each module moves by the mean of its paths' outer gradients.

DiPaCo (arXiv 2403.10616) Algorithm 1 lines 11-15 and section 2.7. `gradient` measures how far a
path moved a module, weighs contributions (`path_weights`) and averages them; `compress` and
`quantise` encode contributions in fewer bits; `optimizer` is Nesterov momentum per module; `step`
joins them. Imports `trees` and `errors`; knows nothing of models, stores or tasks.
"""
