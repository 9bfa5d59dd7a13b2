#!/usr/bin/env bash
# Hosts for the tests of cluster/. Each is a network, process and mount namespace with its own /root, /tmp and sshd, on a
# bridge of this machine. Root, Linux, iproute2, util-linux, openssh-server and rsync are required.
#   hosts.sh bridge-up                     make the bridge, 10.77.0.1, and end what a run that was killed has left
#   hosts.sh up NAME IP[,IP...] KEY.pub    start a host; the key may log in as root, whose alias is admin
#   hosts.sh down NAME                     end the host and all its processes, as a power cut does
#   hosts.sh all-down                      end all hosts and the bridge
# HOSTS is the hosts' folder, PYTHON_ENV the virtual environment of all hosts, REPOSITORY the checkout that it belongs to.
set -euo pipefail
[[ $(id -u) == 0 ]] || { echo "error: hosts.sh makes namespaces and a bridge: it needs root" >&2; exit 1; }
bridge=hflbr0
hosts=${HOSTS:?a folder for the hosts}
mkdir -p "$hosts"

down() {
  local name=$1 ip
  [[ -e /run/netns/hfl-$name ]] || return 0
  # One of these is the first process of the process namespace, whose end is that of all its processes.
  ip netns pids "hfl-$name" | xargs -r kill -9 2>/dev/null || true
  for ip in $(cat "$hosts/$name/ips" 2>/dev/null); do ip route del "$ip/32" dev $bridge 2>/dev/null || true; done
  ip link del "v-$name" 2>/dev/null || true
  ip netns del "hfl-$name"
}

all_down() {
  local path
  for path in /run/netns/hfl-*; do down "${path#/run/netns/hfl-}"; done
  ip link del $bridge 2>/dev/null || true
}

case ${1:-} in
bridge-up)
  all_down
  ip link add $bridge type bridge && ip addr add 10.77.0.1/32 dev $bridge && ip link set $bridge up
  ;;
up)
  name=$2 ips=${3//,/ } key=$4 dir=$hosts/$2
  venv=${PYTHON_ENV:?} base=$("${PYTHON_ENV}/bin/python" -c 'import sys; print(sys.base_prefix)')
  rm -rf "$dir"; mkdir -p "$dir"/{root/.ssh,tmp}; chmod 700 "$dir"/root "$dir"/root/.ssh; chmod 1777 "$dir"/tmp
  install -m 600 "$key" "$dir/root/.ssh/authorized_keys"
  ssh-keygen -q -t ed25519 -N '' -f "$dir/tmp/hostkey"
  # These files tell cluster/setup_node.sh that its work is done. Installing on every host would take minutes and gigabytes.
  ln -s "$venv" "$dir/root/hflray-venv"
  echo "$(cat "$REPOSITORY/cluster/requirements.lock" "$REPOSITORY/pyproject.toml" | sha256sum | cut -c1-16) cpu" >"$dir/root/hflray-venv.ready"
  cp "$hosts/environment" "$dir/root/.bashrc" 2>/dev/null || : >"$dir/root/.bashrc"
  echo '. ~/.bashrc' >"$dir/root/.profile"
  printf '%s\n' 'Port 22' 'HostKey /tmp/hostkey' 'PermitRootLogin prohibit-password' 'PasswordAuthentication no' \
    'UsePAM no' 'PidFile none' 'StrictModes no' 'MaxStartups 100' 'Subsystem sftp internal-sftp' >"$dir/tmp/sshd_config"
  sed '1i admin:x:0:0::/root:/bin/bash' /etc/passwd >"$dir/tmp/passwd"

  ip netns add "hfl-$name"
  ip link add "v-$name" type veth peer name e0 netns "hfl-$name"
  ip link set "v-$name" master $bridge up
  ip -n "hfl-$name" link set lo up
  for ip in $ips; do
    ip -n "hfl-$name" addr add "$ip/32" dev e0
    ip route add "$ip/32" dev $bridge
  done
  echo "$ips" >"$dir/ips"
  ip -n "hfl-$name" link set e0 up
  # All addresses are on the link. The default route is there because Ray would take 127.0.0.1 for its address without it.
  ip -n "hfl-$name" route add default dev e0 src "${ips%% *}"
  ip -n "hfl-$name" route add unreachable 169.254.0.0/16  # hides the metadata service, if this machine is in a cloud

  cat >"$dir/init.sh" <<INIT
#!/bin/bash
set -e
hostname $name
mount --bind /dev/null /etc/resolv.conf
mount -t tmpfs -o size=2g tmpfs /dev/shm
for path in $venv $base; do mkdir -p $dir\$path && mount --bind -o ro \$path $dir\$path; done
mount --rbind $dir/root /root
mkdir -p /run/sshd
mount --rbind $dir/tmp /tmp
mount --bind /tmp/passwd /etc/passwd
cd /; exec env -i HOME=/root PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin /usr/sbin/sshd -D -e -f /tmp/sshd_config
INIT
  chmod +x "$dir/init.sh"
  setsid ip netns exec "hfl-$name" unshare --pid --fork --kill-child --mount-proc --mount --ipc --uts \
    --propagation private "$dir/init.sh" >"$dir/sshd.log" 2>&1 </dev/null &
  for _ in $(seq 100); do
    (exec 3<>"/dev/tcp/${ips%% *}/22") 2>/dev/null && exit 0
    sleep 0.1
  done
  echo "error: no sshd at $name:"; cat "$dir/sshd.log" >&2; exit 1
  ;;
down) down "$2" ;;
all-down) all_down ;;
*) sed -n '2,9p' "$0" >&2; exit 2 ;;
esac
