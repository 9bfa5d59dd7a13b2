#!/usr/bin/env bash
# Install the environment of requirements.lock, which is the same on every node. This is quick if it is installed already.
#   HFLRAY_TORCH=cpu|cuda    cpu: PyTorch's CPU wheels, 0.2 GB; cuda: PyPI's wheels with CUDA, 3 GB. All nodes need the same.
#   HFLRAY_STORAGE=URI       the storage of journals and checkpoints: s3://bucket/folder, or a folder that all nodes share
#   HFLRAY_TORCH_INDEX=URL   the index of PyTorch's CPU wheels, if it is not download.pytorch.org
set -euo pipefail
fail() { echo "error: $*" >&2; exit 1; }

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
lock=$here/cluster/requirements.lock
venv=$HOME/hflray-venv
torch=${HFLRAY_TORCH:-cpu}
[[ $torch == cpu || $torch == cuda ]] || fail "HFLRAY_TORCH: got '$torch'; accepted: cpu, cuda"
case ${HFLRAY_STORAGE:-} in *EDIT-ME*) fail "HFLRAY_STORAGE: put your bucket in the place of EDIT-ME in the cluster's file" ;; esac

# Every node must have the cluster's token, or no process can join it. Other users of the machine must not read it.
token=$HOME/.ray/auth_token
[[ -s $token ]] || fail "$token is missing; run 'ray get-auth-token --generate' where you run 'ray up', and 'ray up' again"
chmod 700 "$HOME/.ray" && chmod 600 "$token"

want="$(cat "$lock" "$here/pyproject.toml" | sha256sum | cut -c1-16) $torch"
if [[ $(cat "$venv.ready" 2>/dev/null) != "$want" ]]; then
  sudo=$([[ $(id -u) == 0 ]] || echo sudo)
  # gcc compiles the `fused` kernels. On Debian, venv is a separate package.
  if ! command -v gcc >/dev/null || ! python3.11 -c 'import ensurepip' 2>/dev/null; then
    if command -v apt-get >/dev/null; then
      $sudo apt-get update -q && $sudo apt-get install -y -q gcc libc6-dev python3.11 python3.11-venv rsync
    fi
  fi
  command -v python3.11 >/dev/null || fail "python3.11 is not on this machine; requirements.lock is for it; install it"
  rm -rf "$venv" "$venv.ready"
  python3.11 -m venv "$venv"
  if [[ $torch == cpu ]]; then
    # torch and torchvision come from PyTorch's own index, at the locked versions. CUDA's libraries are not installed,
    # because the CPU wheels do not use them.
    pins=$(grep -oE '^(torch|torchvision)==[^ ]+' "$lock" | sed 's/$/+cpu/')
    "$venv/bin/pip" install -q --no-deps --index-url "${HFLRAY_TORCH_INDEX:-https://download.pytorch.org/whl/cpu}" $pins
    # A requirement consists of the line with its name and the following indented lines with its hashes.
    awk '/^[a-z]/ { drop = /^(torch|torchvision|triton|nvidia-[a-z0-9-]+|cuda-[a-z0-9-]+)(\[[a-z,]+\])?==/ } !drop' "$lock" >"$venv/cpu.lock"
    lock=$venv/cpu.lock
  fi
  "$venv/bin/pip" install -q --no-deps --require-hashes -r "$lock"
  "$venv/bin/pip" install -q --no-deps --no-build-isolation -e "$here"
  said=$("$venv/bin/pip" check) || fail "$said requirements.lock is older than pyproject.toml: run 'make lock'"
  echo "$want" >"$venv.ready"  # written last, so that an interrupted install is repeated
fi

# The environment of every command on this node. Interactive shells read it, and `ray` runs its commands in such shells.
umask 077
cat >"$HOME/.hflray_env" <<ENV
export PATH="$venv/bin:\$PATH" PYTHONPATH="$here"
export RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0
export HFLRAY_STORAGE="${HFLRAY_STORAGE:-}"
# Ray makes its folder of sockets, logs and staged files writable for every user of the machine, so it lies in a closed one.
export RAY_TMPDIR="/tmp/hflray-$(id -un)"  # the same on all nodes, because workers take the head's
[ -d "\$RAY_TMPDIR" ] || mkdir -m 700 "\$RAY_TMPDIR"
if [ ! -O "\$RAY_TMPDIR" ] || [ -L "\$RAY_TMPDIR" ] || [ "\$(stat -c %a "\$RAY_TMPDIR")" != 700 ]; then
  ray() { echo "error: \$RAY_TMPDIR is not a folder of yours with mode 700; remove it" >&2; return 2; }
fi
ENV
grep -qs hflray_env "$HOME/.bashrc" || echo '[ -f ~/.hflray_env ] && . ~/.hflray_env' >>"$HOME/.bashrc"
