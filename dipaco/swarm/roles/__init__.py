"""The processes: backbones lead, volunteers compute, auxiliaries add up; sessions of both."""
