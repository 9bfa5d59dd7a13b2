"""Names of the files and folders that a training run writes."""

RLLIB, PROGRESS, CHECKPOINT = "rllib", "training.json", "checkpoint"
POLICY, HISTORY = "policy.safetensors", "history.jsonl"
STATE = "hflray_state"  # the folder of the algorithm's state in RLLIB
