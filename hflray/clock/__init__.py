"""When the cloud combines the models of the edges, and edges those of devices: a file for each rule (``clock``)."""
