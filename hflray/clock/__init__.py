"""When the cloud combines the models of the edges, and edges those of devices (``clock``), waiting or not."""
