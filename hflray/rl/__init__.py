"""Training of the assigner with RLlib: Algorithm 5 of the paper, on whole episodes.

`fleets` draws random fleets and solves them with a teacher, and `pool` caches the solutions. `env` is the Gymnasium
environment over solved fleets. `module`, `learner`, `replay`, `runner` and `algorithm` plug the D3QN into RLlib, and
`train` runs the training. This package imports none of them, because importing RLlib takes seconds.
"""
