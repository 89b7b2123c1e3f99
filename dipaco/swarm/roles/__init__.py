"""The processes: backbones lead, volunteers compute, and sessions of these."""
