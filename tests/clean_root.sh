#!/usr/bin/env bash
# tests/clean_root.sh [--suite bookworm|trixie|noble] [--arm64] [--cuda DIR] [--gpu CAPABILITY] [--keep DIR] [--base DIR] [COMMAND...]
# Tries the README on a machine with nothing installed: makes a minimal Debian 12 (or 13, or Ubuntu 24.04) root with debootstrap,
# clones the committed state of this checkout into it, and runs COMMAND there (default: scripts/run -e 'print(1)'), timed.
#   tests/clean_root.sh scripts/run recipes/lora_qwen.lua
#   tests/clean_root.sh --bundle dist/qeng-0.1.0-linux-x86_64 bin/qeng --version     (no checkout: only that folder)
# --bundle DIR: put DIR into the root instead of a clone, to see that a bundle needs nothing else.
# --cuda DIR: the CUDA toolkit in DIR is copied to /usr/local/cuda there. --gpu 9.0: an nvidia-smi that says there is such a GPU.
#   tests/clean_root.sh --cuda /usr/local/cuda --gpu 9.0 bash -c 'scripts/run --version && cmake --install build/release --prefix /opt/qeng'
# --arm64: a root of that architecture, run by qemu (packages qemu-user-static, g++-aarch64-linux-gnu). This machine's cross compiler stands in
#   for the root's own, of the same version, which would take hours; all else is the root's.
# --base DIR: an already made root to start from (it is copied), to save the time of debootstrap.
# --keep DIR: make the root there and leave it; otherwise it is removed at the end.
# Needs root, debootstrap, a network, and for noble Ubuntu's archive keyring (package ubuntu-keyring).
# MIRROR overrides the archive's address. Not part of scripts/test.
set -euo pipefail
checkout=$(readlink -f "$(dirname "$0")/..")
suite=bookworm arch="" keep="" base="" bundle="" cuda="" gpu=""
while (($#)); do
  case $1 in
    --suite) suite=$2; shift 2 ;;
    --arm64) arch=arm64; shift ;;
    --keep) keep=$2; shift 2 ;;
    --base) base=$2; shift 2 ;;
    --bundle) bundle=$2; shift 2 ;;
    --cuda) cuda=$(readlink -f "$2"); shift 2 ;;
    --gpu) gpu=$2; shift 2 ;;
    -h | --help) sed -n '2,16s/^# //p' "$0"; exit 0 ;;
    *) break ;;
  esac
done
(($#)) || set -- scripts/run -e 'print(1)'
((EUID == 0)) || { echo "clean_root: needs root (debootstrap and chroot)" >&2; exit 1; }

root=${keep:-$(mktemp -d)/root}
[[ ! -e $root ]] || { echo "clean_root: $root exists already" >&2; exit 1; }
compiler=()  # what of this machine its cross compiler needs
if [[ $arch ]]; then
  compiler=(/usr/lib64 /usr/lib/x86_64-linux-gnu /usr/lib/gcc-cross /usr/aarch64-linux-gnu)
  [[ -e /proc/sys/fs/binfmt_misc/qemu-aarch64 && -d /usr/lib/gcc-cross ]] ||
    { echo "clean_root: --arm64 needs qemu-user-static, registered in /proc/sys/fs/binfmt_misc, and g++-aarch64-linux-gnu" >&2; exit 1; }
fi
# shellcheck disable=SC2317  # called by the trap
cleanup() {
  umount "$root/sys" "$root/dev/pts" "$root/proc" "${compiler[@]/#/$root}" 2>/dev/null || true
  # Never remove a root in which something is still mounted.
  [[ -n $keep ]] || grep -qF " $root/" /proc/mounts || rm -rf --one-file-system "$(dirname "$root")"
}
trap cleanup EXIT

if [[ -n $base ]]; then
  mkdir -p "$(dirname "$root")"
  cp -a "$base" "$root"
else
  case $suite in
    bookworm | trixie) options=() mirror=${MIRROR:-http://deb.debian.org/debian} ;;
    noble) options=(--components='main,universe' --keyring=/usr/share/keyrings/ubuntu-archive-keyring.gpg)
           archive=http://archive.ubuntu.com/ubuntu
           [[ $(uname -m)$arch == x86_64 ]] || archive=http://ports.ubuntu.com/ubuntu-ports
           mirror=${MIRROR:-$archive} ;;
    *) echo "clean_root: --suite is bookworm, trixie or noble, not '$suite'" >&2; exit 2 ;;
  esac
  script=/usr/share/debootstrap/scripts/$suite
  [[ -e $script ]] || script=/usr/share/debootstrap/scripts/gutsy  # the one that every Ubuntu release uses
  [[ -z $arch ]] || options+=(--arch="$arch")
  debootstrap --variant=minbase "${options[@]}" "$suite" "$root" "$mirror" "$script" >/dev/null
fi
if [[ -n $bundle ]]; then
  cp -a "$bundle" "$root/qeng"
else
  git clone -q "$checkout" "$root/qeng"
fi
[[ -z $cuda ]] || { rm -rf "$root/usr/local/cuda" && cp -a "$cuda" "$root/usr/local/cuda"; }
if [[ -n $gpu ]]; then
  printf '#!/bin/sh\necho %s\n' "$gpu" >"$root/usr/bin/nvidia-smi"
  chmod +x "$root/usr/bin/nvidia-smi"
fi
# shellcheck disable=SC1091
system=$(. "$root/etc/os-release" && echo "$PRETTY_NAME")
cp /etc/resolv.conf "$root/etc/resolv.conf"
mount -t proc proc "$root/proc"
mount -t devpts -o ptmxmode=666 devpts "$root/dev/pts"  # tests that answer at a terminal open one
for folder in /sys "${compiler[@]}"; do  # PoCL counts processors and memory in /sys
  mkdir -p "$root$folder"
  mount --bind "$folder" "$root$folder"
  mount -o remount,bind,ro "$root$folder"
done
environment=(PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 TERM="${TERM:-dumb}")
if [[ $arch ]]; then
  [[ -e $root/lib64 ]] || ln -s usr/lib64 "$root/lib64"
  mkdir -p "$root/opt/cross/bin"  # not /usr/bin, where the root's own compiler has the same names
  ln -s /usr/lib /usr/aarch64-linux-gnu "$root/opt/cross"  # where the compiler looks, seen from its place
  for tool in g++ as ld; do cp -L "/usr/bin/aarch64-linux-gnu-$tool" "$root/opt/cross/bin/$tool"; done
  environment+=(CXX=/opt/cross/bin/g++ COMPILER_PATH=/opt/cross/bin)
fi
for name in http_proxy https_proxy no_proxy; do
  [[ -z ${!name:-} ]] || environment+=("$name=${!name}")
done
start=$SECONDS status=0
# shellcheck disable=SC2016  # expanded by the shell inside the root
env -i "${environment[@]}" chroot "$root" bash -c 'cd /qeng && exec "$@"' bash "$@" </dev/null || status=$?
echo "clean_root: $system: exit status $status after $((SECONDS - start)) s: $*" >&2
exit "$status"
