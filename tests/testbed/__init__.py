"""A testbed on one Linux machine: devices, edges and a cloud as processes that train and send for real."""
