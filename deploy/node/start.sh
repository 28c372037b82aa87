#!/usr/bin/env bash
# Starts Ray on this host: `start.sh head`, or `start.sh worker HEAD_ADDRESS`; without arguments as
# the last time, after a reboot say. A node that lives is left alone, because instances run on it:
# one that the head knows, and one whose head does not answer. Settings: ~/raylay/settings.
set -euo pipefail
cd ~/raylay
. ./settings
if (($#)); then
  echo "$@" >role
else
  # shellcheck disable=SC2046
  set -- $(<role)
fi
role=$1
port=6379
attempts=5

own=" $(hostname) $(hostname -f 2>/dev/null || true) $(hostname -I) "
region=""
address=""
for pair in $REGIONS; do
  if [[ $own == *" ${pair%%=*} "* ]]; then
    region=${pair#*=}
    address=${pair%%=*}
  fi
done
# In a cloud Ray says the labels of the node type, at the first start only.
if [[ ${RAY_OVERRIDE_LABELS:-} ]]; then
  echo "$RAY_OVERRIDE_LABELS" >labels
elif [[ -f labels ]]; then
  RAY_OVERRIDE_LABELS=$(<labels)
  export RAY_OVERRIDE_LABELS
fi
labels="host=$(hostname)${region:+,region=$region}"

if [[ $role == head ]]; then
  head=${2:-${RAY_HEAD_IP:-$(hostname -I | cut -d' ' -f1)}}
else
  head=$2
fi
# Every shell, and all that Ray starts, gets these.
cat >env.new <<END
export PATH=$PWD/venv/bin:\$PATH
export RAY_ADDRESS=$head:$port
export RAY_AUTH_MODE=token
export RAY_USAGE_STATS_ENABLED=0
export RAY_worker_niceness=0
export RAY_enable_autoscaler_v2=0
export RAY_agent_register_timeout_ms=120000
export RAY_gcs_rpc_server_reconnect_timeout_s=$HEAD_OUTAGE_S
END
mv env.new env
. ./env

# Before Ray: an instance may come with it, and wants the files. One that needs none can do without.
[[ $address == *.*.*.* ]] || address=""
if [[ $role == head ]]; then
  guard=(head)
else
  guard=(worker "$head")
fi
python deploy/guard.py "${guard[@]}" ${address:+"$address"} ||
  echo "raylay: without certificates no guarded fabric starts on $(hostname)" >&2

status=0
python deploy/node.py alive "$role" || status=$?
if ((status == 0)); then
  echo "raylay: the node on $(hostname) lives already, with $labels"
  if [[ $role == head ]]; then
    python deploy/guard.py spread || true
  fi
  exit 0
elif ((status == 3)); then
  echo "raylay: the node on $(hostname) lives, and its head at $head:$port does not answer: it is" \
    "left alone, with the instances on it; to start it anew, first end it with: ray stop --force"
  exit 0
fi
# Ray opens its directory to everybody, with sockets that run programs as this user: it lies in one
# that others cannot enter, where that of `raylay up` is.
private=/tmp/raylay-$(id -u)
(umask 077 && mkdir -p "$private/ray")
if [[ ! -O $private || ! -O $private/ray ]]; then
  echo "raylay: $private belongs to another user: sudo rm -r $private" >&2
  exit 1
fi
chmod 700 "$private/ray"
# It came with the mode that it has where `ray up` ran.
[[ ! -O ~/.ray/auth_token ]] || chmod 600 ~/.ray/auth_token
# Ports that are given need not be waited for: Ray waits 15 s for them, and a busy host needs more.
agent_port=6384
options=(--labels "$labels" --temp-dir "$private/ray/tmp" --object-store-memory=83886080
  --runtime-env-agent-port=6382 --dashboard-agent-grpc-port=6383
  "--dashboard-agent-listen-port=$agent_port" --metrics-export-port=6385)
# For one of them it waits all the same, for the file in which its agent says what it was given, and
# ends without it.
say_port() {
  local pid arguments id session
  until pid=$(pgrep -n -u "$(id -u)" -x raylet) && arguments=$(tr '\0' '\n' <"/proc/$pid/cmdline") &&
    id=$(sed -n 's/^--node_id=//p' <<<"$arguments") && [[ $id ]]; do
    sleep 0.2
  done
  session=$(sed -n 's/^--session_dir=//p' <<<"$arguments")
  echo -n "$agent_port" >"$session/.port" && mv "$session/.port" \
    "$session/dashboard_agent_listen_port_$id"
}
if [[ $address ]]; then
  options+=("--node-ip-address=$address")
fi
unset RAY_ADDRESS
if [[ $role == head ]]; then
  # A node is given up, and ends when it comes back, after twenty checks of this length.
  export RAY_health_check_failure_threshold=20
  export RAY_health_check_timeout_ms=$((HEAD_OUTAGE_S * 25))
  export RAY_health_check_period_ms=$((HEAD_OUTAGE_S * 25))
  case $GCS_STORAGE in
    memory) ;;
    rocksdb)
      export RAY_gcs_storage=rocksdb RAY_gcs_storage_path=$PWD/gcs
      (umask 077 && mkdir -p gcs)
      ;;
    *)
      export RAY_REDIS_ADDRESS=$GCS_STORAGE
      if [[ ! -s redis-password ]]; then
        echo "raylay: $PWD/redis-password is missing: it has the password of the Redis at" \
          "$GCS_STORAGE (deploy/redis.conf), and only $(id -un) may read it" >&2
        exit 1
      fi
      options+=("--redis-password=$(<redis-password)")
      ;;
  esac
  options+=(--head "--port=$port" --include-dashboard=false)
  if [[ -f ~/ray_bootstrap_config.yaml ]]; then
    options+=("--autoscaling-config=$HOME/ray_bootstrap_config.yaml")
  fi
else
  options+=("--address=$head:$port")
fi

# Ray gives a node 30 s to start, and its cluster launcher does not try twice.
for ((attempt = 1; ; attempt++)); do
  ray stop --force >/dev/null 2>&1 || true
  if [[ $role == worker ]]; then
    # What the head still believes of a former life of this host would keep its instances waiting.
    RAY_ADDRESS=$head:$port python deploy/node.py bury || true
  fi
  say_port >/dev/null 2>&1 &
  saying=$!
  trap 'kill "$saying" 2>/dev/null || true' EXIT
  if ray start "${options[@]}"; then
    exit 0
  fi
  kill "$saying" 2>/dev/null || true
  # On a busy host a node may come although Ray gave it up.
  for ((waited = 0; waited < 60; waited++)); do
    if ! pgrep -x raylet >/dev/null; then
      break
    elif python deploy/node.py alive "$role"; then
      exit 0
    fi
    sleep 1
  done
  if ((attempt == attempts)); then
    echo "raylay: Ray does not start on $(hostname): see $private/ray/tmp/session_latest/logs" >&2
    exit 1
  fi
done
