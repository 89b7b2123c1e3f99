"""The processes of a swarm: backbones that lead, volunteers that compute, auxiliaries that add up."""
