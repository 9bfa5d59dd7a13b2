#!/usr/bin/env bash
# The environment of requirements.lock on this machine, the same on every node; quick when it is there already.
#   HFLRAY_TORCH=cpu|cuda    cpu: PyTorch's CPU wheels, 0.2 GB; cuda: those of PyPI with CUDA, 3 GB. One for all nodes.
#   HFLRAY_STORAGE=URI       where sweeps keep trials and checkpoints: s3://bucket/folder, or a folder all nodes share
#   HFLRAY_TORCH_INDEX=URL   where PyTorch's CPU wheels are, if not at download.pytorch.org
set -euo pipefail
fail() { echo "error: $*" >&2; exit 1; }

here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
lock=$here/cluster/requirements.lock
venv=$HOME/hflray-venv
torch=${HFLRAY_TORCH:-cpu}
[[ $torch == cpu || $torch == cuda ]] || fail "HFLRAY_TORCH: got '$torch'; accepted: cpu, cuda"
case ${HFLRAY_STORAGE:-} in *EDIT-ME*) fail "HFLRAY_STORAGE: put your bucket in the place of EDIT-ME in the cluster's file" ;; esac

# Every node must have the cluster's token, or nothing can join it; nobody else on the machine may read it.
token=$HOME/.ray/auth_token
[[ -s $token ]] || fail "$token is missing; run 'ray get-auth-token --generate' where you run 'ray up', and 'ray up' again"
chmod 700 "$HOME/.ray" && chmod 600 "$token"

want="$(cat "$lock" "$here/pyproject.toml" | sha256sum | cut -c1-16) $torch"
if [[ $(cat "$venv.ready" 2>/dev/null) != "$want" ]]; then
  sudo=$([[ $(id -u) == 0 ]] || echo sudo)
  # gcc compiles the first layer of the `native` kernel; venv is a package of its own on Debian.
  if ! command -v gcc >/dev/null || ! python3.11 -c 'import ensurepip' 2>/dev/null; then
    if command -v apt-get >/dev/null; then
      $sudo apt-get update -q && $sudo apt-get install -y -q gcc libc6-dev python3.11 python3.11-venv rsync
    fi
  fi
  command -v python3.11 >/dev/null || fail "python3.11 is not on this machine; requirements.lock is for it; install it"
  rm -rf "$venv" "$venv.ready"
  python3.11 -m venv "$venv"
  if [[ $torch == cpu ]]; then
    # Those two from PyTorch's own index, at the locked versions; without CUDA's libraries, which they do not use.
    pins=$(grep -oE '^(torch|torchvision)==[^ ]+' "$lock" | sed 's/$/+cpu/')
    "$venv/bin/pip" install -q --no-deps --index-url "${HFLRAY_TORCH_INDEX:-https://download.pytorch.org/whl/cpu}" $pins
    # A requirement is the line with its name and the indented lines with its hashes after it.
    awk '/^[a-z]/ { drop = /^(torch|torchvision|triton|nvidia-[a-z0-9-]+|cuda-[a-z0-9-]+)(\[[a-z,]+\])?==/ } !drop' "$lock" >"$venv/cpu.lock"
    lock=$venv/cpu.lock
  fi
  "$venv/bin/pip" install -q --no-deps --require-hashes -r "$lock"
  "$venv/bin/pip" install -q --no-deps --no-build-isolation -e "$here"
  said=$("$venv/bin/pip" check) || fail "$said requirements.lock is older than pyproject.toml: run 'make lock'"
  echo "$want" >"$venv.ready"  # last: an install that was broken off is begun again
fi

# What every command on this node must know; read by interactive shells, which is what `ray` uses to run its commands.
umask 077
cat >"$HOME/.hflray_env" <<ENV
export PATH="$venv/bin:\$PATH" PYTHONPATH="$here"
export RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0
export HFLRAY_STORAGE="${HFLRAY_STORAGE:-}"
ENV
grep -qs hflray_env "$HOME/.bashrc" || echo '[ -f ~/.hflray_env ] && . ~/.hflray_env' >>"$HOME/.bashrc"
