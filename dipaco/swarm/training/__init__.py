"""The work of every peer in a step: gradients, the state, and the slices that it adds up."""
