#!/usr/bin/env bash
# Developer build in place: PYTHON=/path/to/python ./dev_build.sh, then PYTHONPATH=native/cpu/build/site imports it.
# Needs cmake, ninja and, in that Python, mlx[cpu] and nanobind. Objects stay in build/dev.
set -euo pipefail
cd "$(dirname "$0")"
python=${PYTHON:-python3}
mkdir -p build/dev
exec 9>build/dev.lock
flock 9
cmake -S . -B build/dev -G Ninja -DCMAKE_BUILD_TYPE=Release -DPython_EXECUTABLE="$(command -v "$python")" >build/dev.log ||
  { cat build/dev.log; exit 1; }
cmake --build build/dev -j "${JOBS:-2}"
cmake --install build/dev --prefix build/site >/dev/null
cp mlx_dspark_cpu/*.py mlx_dspark_cpu/py.typed build/site/mlx_dspark_cpu/
