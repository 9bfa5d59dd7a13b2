"""Names of the files and folders that a training run writes."""

RLLIB, PROGRESS, CHECKPOINT = "rllib", "training.json", "checkpoint"
POLICY, HISTORY = "policy.safetensors", "history.jsonl"
