"""The knowledge of a leader: its members, the holders of rows, rounds of averaging, past means."""
