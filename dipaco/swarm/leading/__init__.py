"""What a leader knows: its members, which rows are whose, rounds of averaging, past means."""
