"""Real traffic replayed through real processes: traces, a fleet, the replay and its report."""
