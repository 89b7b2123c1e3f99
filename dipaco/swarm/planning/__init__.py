"""A group's plans, as pure functions: shares of the sum, leases of rows, progress, deadlines."""
