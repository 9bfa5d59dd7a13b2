#!/usr/bin/env bash
# Start MLflow's server on the head's loopback, where `ray attach CLUSTER -p 5000` reaches it. It has no passwords.
#   HFLRAY_MLFLOW_STORE=URI  for example postgresql://user@host/db. The default is SQLite in ~/hflray_results, which is enough
#                            for one sweep at a time. The database's password belongs in ~/.pgpass (mode 600), and not in a
#                            file of the repository.
set -euo pipefail
if [[ -f ~/.hflray_env ]]; then . ~/.hflray_env; fi
answers() { (exec 3<>/dev/tcp/127.0.0.1/5000) 2>/dev/null; }
answers && exit 0

results=$HOME/hflray_results
mkdir -p "$results"
setsid nohup mlflow server --host 127.0.0.1 --port 5000 --workers 1 \
  --backend-store-uri "${HFLRAY_MLFLOW_STORE:-sqlite:///$results/mlflow.db}" \
  --artifacts-destination "${HFLRAY_STORAGE:-$results}/mlflow-artifacts" \
  >"$results/mlflow.log" 2>&1 </dev/null &
for _ in $(seq 180); do
  answers && exit 0
  sleep 1
done
echo "error: MLflow does not answer after 180 s; its log: $results/mlflow.log" >&2
tail -n 5 "$results/mlflow.log" >&2
exit 1
