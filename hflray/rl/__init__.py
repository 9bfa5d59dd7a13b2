"""Training of the assigner and of the scheduler with RLlib: Algorithm 5 of the paper, and PPO over rounds.

`fleets` draws random fleets, and `solved_fleets` solves them with a teacher and caches the solutions. `env` and
`scheduling_env` are the Gymnasium environments. `session` and `scheduling_session` train, and `fine_tuning` goes on
with a policy. `train`, `finetune` and `card` are commands, which no other module imports. This package imports none of
them, because importing RLlib takes seconds.
"""

POLICY = "policy.safetensors"  # the file of a training's policy in its folder
