"""What every peer does in a step: gradients, the state, and the slices that it adds up."""
