#!/usr/bin/env bash
# On the head: stops Ray on all hosts of `ray up`. `ray down` alone asks the head only, and the
# others are told to outlive it.
set -euo pipefail
cd ~/raylay
. ./env
hosts=$(python -c '
import sys, yaml
config = yaml.safe_load(open(sys.argv[1]))
print(config["auth"]["ssh_user"], *config["provider"].get("worker_ips", ()))
' ~/ray_bootstrap_config.yaml)
read -r user workers <<<"$hosts"
for worker in $workers; do
  ssh -i ~/ray_bootstrap_key.pem -o StrictHostKeyChecking=accept-new \
    -o UserKnownHostsFile="$PWD/worker-hosts" -o HashKnownHosts=no -o BatchMode=yes \
    -o LogLevel=ERROR -o ConnectTimeout=10 "$user@$worker" \
    '. ~/raylay/env && ray stop --force' >/dev/null || echo "raylay: $worker does not answer" >&2 &
done
wait
ray stop --force
