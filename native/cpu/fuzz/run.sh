#!/usr/bin/env bash
# Builds the fuzzers with the address and undefined-behaviour sanitizers and runs each for some seconds, seed by seed.
#   fuzz/run.sh [seconds each, default 60] [first seed, default 1]
# Exit code 0: no report and no differing bits; 1: a finding, its seed printed, or the build failed; 2: there is no
# compiler with sanitizers. CXX chooses it (g++ or clang++); objects stay in build/fuzz until a source is newer.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-60} first=${2:-1} cxx=${CXX:-g++} cases=10
flags="-std=c++20 -O1 -g1 -fno-omit-frame-pointer -ffp-contract=off -fno-math-errno -fno-trapping-math -Wall -Wextra"
flags="$flags -Wno-psabi -fsanitize=address,undefined -fno-sanitize-recover=all -Isrc"
out=build/fuzz/$(basename "$cxx")
mkdir -p "$out"
echo 'int main() {}' | "$cxx" -fsanitize=address,undefined -x c++ - -o "$out/probe" ||
  { echo "fuzz: $cxx with -fsanitize=address,undefined does not work; install g++ or clang++ and set CXX" >&2; exit 2; }
exec 9>"$out/lock"
flock 9

jobs=()
objects=()
for source in src/*.cpp fuzz/*.cpp; do
  case $source in
    src/ext*) continue ;;                                               # knows MLX
    *_avx2.cpp) [ "$(uname -m)" = x86_64 ] || continue; more="-mavx2 -mfma -mf16c" ;;
    *_avx512.cpp) [ "$(uname -m)" = x86_64 ] || continue
      more="-mavx2 -mfma -mf16c -mavx512f -mavx512vl -mavx512bw -mavx512dq -mavx512vnni -Wno-maybe-uninitialized" ;;
    *) more="" ;;
  esac
  object=$out/$(basename "$source" .cpp).o
  case $source in src/*) objects+=("$object") ;; esac
  [ -e "$object" ] && [ -z "$(find src fuzz -newer "$object" -name '*.[hc]*' -print -quit)" ] && continue
  jobs+=("$cxx $flags $more -c $source -o $object.part && mv $object.part $object")
done
[ ${#jobs[@]} -eq 0 ] || printf '%s\0' "${jobs[@]}" | xargs -0 -P "${JOBS:-2}" -I{} bash -c '{}' || exit 1
for name in fuzz_matmul fuzz_layers fuzz_draft; do
  "$cxx" -fsanitize=address,undefined "$out/$name.o" "${objects[@]}" -pthread -o "$out/$name" || exit 1
done
flock -u 9

export ASAN_OPTIONS=detect_stack_use_after_return=1 UBSAN_OPTIONS=print_stacktrace=1
for name in fuzz_matmul fuzz_layers fuzz_draft; do
  end=$((SECONDS + seconds)) seed=$first
  while :; do
    "$out/$name" $cases $seed >"$out/$name.log" 2>&1 ||
      { cat "$out/$name.log"; echo "fuzz: $name found something; again with: $out/$name $cases $seed" >&2; exit 1; }
    seed=$((seed + 1))
    [ $SECONDS -lt $end ] || break
  done
  echo "$name: $((seed - first)) seeds of $cases cases from $first, no report"
done
