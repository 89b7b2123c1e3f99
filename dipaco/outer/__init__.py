"""The outer step: between phases, each module moves by the mean of its paths' outer gradients.

DiPaCo (arXiv 2403.10616) Algorithm 1 lines 11-15 and section 2.7. `gradient` measures how far a
path moved a module, weighs contributions (`path_weights`) and averages them. `codecs` encode
contributions in fewer bits, and `compress` sends later what they lose. `vocabulary` averages a
token's rows over the paths that have the token. `step` moves a module by Nesterov momentum, or by
the rule that a user passes (`own_step`). The room imports `trees`, `errors` and the names of
`model.config`. It knows nothing of stores or tasks.
"""
