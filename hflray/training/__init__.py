"""Algorithm 1 of the paper: devices train, edges aggregate Q times, the cloud combines."""
