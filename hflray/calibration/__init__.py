"""From a log of real devices to the tables of a fleet: fits, intervals, and verdicts on held-out rows."""
