#!/usr/bin/env bash
# scripts/run where there are nvcc or GPUs or not, with stand-ins for them: what is built, for which GPUs, what is said; and
# an installation with and without the CUDA backend.
# shellcheck disable=SC2016  # what is in single quotes other shells expand
set -uo pipefail
qeng=${QENG:?the qeng executable}
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
failed=0
fail() { echo "FAILED $*"; failed=1; }
same() { [[ $2 == "$3" ]] || fail "$1: '$2', expected '$3'"; }
stand_in() {  # FILE, its lines
  mkdir -p "$(dirname "$1")"
  { echo '#!/usr/bin/env bash'; printf '%s\n' "${@:2}"; } >"$1"
  chmod +x "$1"
}

# cuda-present: GPUs by what nvidia-smi says, those of 7.5 or more, each once; nvcc from the environment, the PATH, CUDA_HOME.
stand_in "$dir/tools/nvcc" ''
stand_in "$dir/toolkit/bin/nvcc" ''
mkdir -p "$dir/few"  # what the script calls, and no nvcc that this machine may have
for tool in bash timeout sed sort awk grep dirname readlink; do ln -s "$(command -v $tool)" "$dir/few/"; done
present() { env -u CUDACXX -u CUDA_HOME PATH="$dir/smi:$dir/few" "$@" scripts/cuda-present; }
smi() { stand_in "$dir/smi/nvidia-smi" "$@"; }
smi 'printf "9.0\n7.0\n12.0\n7.5\n9.0\n8.6\n"'
same "GPUs" "$(present CUDACXX="$dir/tools/nvcc -ccbin g++")" "$dir/tools/nvcc 75 86 90 120"
smi 'echo 7.0'
same "an old GPU" "$(present PATH="$dir/tools:$dir/smi:$dir/few")" "$dir/tools/nvcc"
smi 'echo "Field \"compute_cap\" is not a valid field to query."; exit 2'
same "an old nvidia-smi" "$(present CUDA_HOME="$dir/toolkit")" "$dir/toolkit/bin/nvcc"
stand_in "$dir/toolkit/bin/__nvcc_device_query" 'echo 89,90'
same "no nvidia-smi" "$(present CUDACXX="$dir/toolkit/bin/nvcc")" "$dir/toolkit/bin/nvcc 89 90"

# run, with a cmake that notes what it is asked and makes what it would.
mkdir -p "$dir/checkout/scripts"
cp scripts/{run,build} "$dir/checkout/scripts/"
stand_in "$dir/checkout/scripts/setup" ''
stand_in "$dir/checkout/scripts/cuda-present" 'cat "$(dirname "$0")/../present"'
stand_in "$dir/bin/cmake" 'echo "$*" | sed "s/ --parallel [0-9]*//" >>asked
  mkdir -p build/release
  if [[ $* == *--preset* ]]; then
    echo "QENG_CUDA_PRESENT:INTERNAL=$(cat present)" >build/release/CMakeCache.txt
    if [[ -e no_backend || $(cat present) == -* ]]; then echo "build qeng: x"; else echo "build libqeng_cuda.so: x"; fi >build/release/build.ninja
  else
    [[ ! -e broken || $* != *qeng_cuda* ]] || { echo "FAILED: nvcc"; exit 1; }
    printf "#!/bin/sh\necho ran \$*\n" >build/release/qeng
    chmod +x build/release/qeng
  fi'
run() {  # WHAT PRESENT, then ASKED SAID
  : >"$dir/checkout/asked"
  echo "$2" >"$dir/checkout/present"
  PATH="$dir/bin:$PATH" "$dir/checkout/scripts/run" hello >"$dir/out" 2>"$dir/said"
  status=$?
  same "$1: asked of cmake" "$(paste -sd ';' <"$dir/checkout/asked")" "$3"
  same "$1: said" "$(grep -o '^run: [^:,]*' "$dir/said" | paste -sd ';')" "$4"
}
configure='--preset release' qeng_built='--build build/release --target qeng' cuda_built='--build build/release --target qeng_cuda'
run "neither" "-" "$configure;$qeng_built" ""
same "the recipe" "$(cat "$dir/out")" "ran hello"
run "again" "-" "$qeng_built" ""
run "a GPU" "- 90" "$configure;$qeng_built" "run: there is a GPU"
grep -q 'no nvcc .* this runs on the CPU' "$dir/said" || fail "a GPU: $(cat "$dir/said")"
run "a GPU and nvcc" "/nvcc 90" "$configure;$qeng_built;$cuda_built" ""
run "again" "/nvcc 90" "$qeng_built;$cuda_built" ""
run "another GPU" "/nvcc 89" "$configure;$qeng_built;$cuda_built" ""
touch "$dir/checkout/no_backend"
run "a broken nvcc" "/nvcc 86" "$configure;$qeng_built" "run: there is a GPU"
rm "$dir/checkout/no_backend"
touch "$dir/checkout/broken"
run "nvcc fails" "/nvcc 80" "$configure;$qeng_built;$cuda_built" "run: to go without the CUDA backend"
same "nvcc fails" "$status $(cat "$dir/out")" "1 "
rm -r "$dir/checkout/broken" "$dir/checkout/build"
run "nvcc alone" "/nvcc" "$configure;$qeng_built" "run: nvcc is here but no GPU of compute capability 7.5 or more"
run "nvcc alone, again" "/nvcc" "$qeng_built" ""

# The real CMake, for the GPUs that are there; and an installation from it, which takes the backend where it was built.
smi 'printf "8.6\n9.0\n"'
PATH="$dir/smi:$PATH" cmake -S . -B "$dir/build" -G Ninja -DQENG_TESTS=OFF >"$dir/configured" 2>&1 || fail "cmake: $(tail -n 5 "$dir/configured")"
if ! grep -q '^-- CUDA backend for: ' "$dir/configured"; then
  echo "SKIPPED: an installation with the CUDA backend: $(grep -o 'Without the CUDA backend: .*' "$dir/configured")"
  exit $failed
fi
grep -q '^-- CUDA backend for: 86;90a$' "$dir/configured" || fail "for the GPUs: $(grep 'CUDA backend' "$dir/configured")"
install_all() { cmake --install "$dir/build" --prefix "$dir/installed" >"$dir/text" 2>&1 || fail "install: $(tail -n 3 "$dir/text")"; }
cp "$qeng" "$dir/build/qeng"
install_all
grep -q 'Without the CUDA backend, which is not built: scripts/build release qeng_cuda' "$dir/text" || fail "install without: $(cat "$dir/text")"
same "installed" "$("$dir/installed/bin/qeng" -e 'print(1)')" 1
echo library >"$dir/build/libqeng_cuda.so"
install_all
! grep -q Without "$dir/text" || fail "install with: $(cat "$dir/text")"
"$dir/installed/bin/qeng" -e 'q.device { device = "cuda" }' >"$dir/text" 2>&1
grep -q 'cannot load the CUDA backend: .*/lib/libqeng_cuda.so' "$dir/text" || fail "the installed backend is not looked for: $(cat "$dir/text")"
exit $failed
