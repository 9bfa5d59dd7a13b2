"""The allocation's compiled functions ("kernels"): what Numba turns into machine code, and how.

Nothing is imported here, so that a run without the Newton method does not load Numba.
"""
