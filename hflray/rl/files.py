"""Names of what a training run leaves behind."""

RLLIB, PROGRESS, CHECKPOINT = "rllib", "training.json", "checkpoint"
POLICY, HISTORY = "policy.safetensors", "history.jsonl"
