"""Learning the assigner with RLlib: Algorithm 5 of the paper, on whole episodes.

`fleets` solves random fleets with a teacher, ahead and in parallel; `env` is the Gymnasium environment over them;
`module`, `learner`, `replay`, `runner` and `algorithm` are the D3QN as RLlib's parts; `train` runs it. Nothing is
imported here: importing RLlib takes seconds.
"""
