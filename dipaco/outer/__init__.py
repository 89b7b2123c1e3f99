"""The outer step: between phases, each module moves by the mean of its paths' outer gradients.

DiPaCo (arXiv 2403.10616) Algorithm 1 lines 11-15 and section 2.7. `gradient` measures how far a
path moved a module, weighs contributions (`path_weights`) and averages them; `codecs` encode
contributions in fewer bits, and `compress` sends later what they lose; `vocabulary` averages a
token's rows by who has the token; `optimizer` is Nesterov momentum per module, and `own_step` what
a user may pass in its place; `step` joins them; `correlation` compares a step with the one before.
Imports `trees`, `errors` and the names of `model.config`; knows nothing of stores or tasks.
"""
