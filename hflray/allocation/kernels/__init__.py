"""The functions of the allocation that Numba compiles ("kernels"), and how it compiles them.

This file imports nothing, so that a run without the Newton method does not load Numba.
"""
