#!/bin/sh
# Times everything that backends/cuda/README.md tabulates, on the CUDA device at hand, in under 8 minutes.
# Usage: sh tests/bench/gpu_table.sh [BUILD_FOLDER [MODEL_FOLDER]]
# MODEL_FOLDER: where the random model of the decode bar lies, or is to be written (8.4 GB, needs numpy). Without it the whole
# model is left out. Each program prints medians; shares are of what the same run measured.
set -eu
cd "$(dirname "$0")/../.."
build=${1:-build/release}
plugin=$build/lib/libcairn_cuda.so
bench=$build/tests/bench
start=$(date +%s)

echo "== dense GDN prefill and decode (16/32 heads of 128, bf16)"
"$bench/gpu_gdn_bench" "$plugin" prefill batch decode
echo "== KDA (32/32), GDN2, heads of 64, SSE n4k1 (16 heads): prefill and decode"
"$bench/gpu_delta_bench" "$plugin" kda gdn2 gdn64 sse decode
echo "== SparseGDN beside dense"
"$bench/gpu_sparse_gdn_bench" "$plugin" prefill batch
export CAIRN_BACKEND_PATH="$build/lib"
echo "== operators"
"$bench/op_bench" --backend cuda \
  sdm phase=decode B=1 side=480 V=1920 W=64 , sdm phase=decode B=64 side=480 V=1920 W=64 , \
  sdm phase=decode B=1 side=480 V=1920 W=64 rows=1 , sdm phase=decode B=64 side=480 V=1920 W=64 rows=1 , \
  linear T=1 D=2560 N=18432 , linear T=8 D=2560 N=18432 , linear T=1 D=2560 N=18432 W=i8 , linear T=1 D=2560 N=18432 W=i4 , \
  linear T=64 D=2560 N=18432 decode=0 , linear T=2048 D=2560 N=18432 , linear T=8192 D=2560 N=18432 , \
  softmax_attention T=2048 HQ=16 HK=4 , softmax_attention T=16384 HQ=32 HK=8 K=128 V=128 , \
  softmax_attention phase=decode B=1 HQ=16 HK=4 start=4096 , softmax_attention phase=decode B=8 HQ=16 HK=4 start=65536 , \
  moe T=1 D=2048 F=512 E=256 k=8 , moe T=2048 D=2048 F=512 E=256 k=8
if [ $# -ge 2 ]; then
  [ -f "$2/config.json" ] || python3 tests/bench/make_random_model.py "$2"
  echo "== whole model, Qwen3.5-4B shape, random bf16 weights (8.41 GB: 1.96 ms a step at 4.3 TB/s)"
  "$bench/generate_bench" "$2" --backend cuda --bf16 --prefill 2048 --decode 64 --batch 1,8,64
fi
echo "== $(($(date +%s) - start)) s"
