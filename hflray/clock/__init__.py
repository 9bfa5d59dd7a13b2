"""When the cloud combines the models of the edges: a file for each rule (``clock.cloud``)."""
