#!/bin/bash
# Builds the kit, with which a machine that has a card, but neither a Rust toolchain nor a network, shows what graphc does on it:
#
#     benchmarks/card/build.sh [DIR]
#
# fills DIR (target/card) and packs it as DIR.tar.gz. Nothing of it is installed: unpack it there and run
# `./run.sh right OUT`, `./run.sh fast OUT` and `./run.sh why OUT`. Weights are made by seed, so none are in it.
# CARD_PROFILE=dev takes development builds, for rehearsals.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
kit=$(realpath -m "${1:-$root/target/card}")
profile=${CARD_PROFILE:-release}
built=$root/target/$([ "$profile" = dev ] && echo debug || echo "$profile")
cd "$root"

cargo build --workspace --profile "$profile" --bin graphc --example card_kernels --example card_models
rm -rf "$kit"
mkdir -p "$kit/bin" "$kit/models" "$kit/plans" "$kit/refs" "$kit/peers" "$kit/python" "$kit/kernels"

for program in graphc examples/card_kernels; do
    strip -o "$kit/bin/$(basename $program)" "$built/$program"
done
cp benchmarks/card/{run.sh,run.py,kit.py,machine.py,items.py,right.py,fast.py,why.py,data.py,table.py} "$kit"
cp benchmarks/card/peers/*.py benchmarks/peers/torch_models.py "$kit/peers"
cp -r python/graphc_torch "$kit/python"
find "$kit" -name __pycache__ -prune -exec rm -rf {} +
for reference in tests/refs/*/ref.json; do
    [ -f "$(dirname "$reference")/model.onnx" ] && cp -r "$(dirname "$reference")" "$kit/refs"
done
"$built/examples/card_models" "$kit/models"

# Plans are made here, so that no time of the card goes into them. There they find their models beside them.
for model in "$kit"/models/*.gir; do
    name=$(basename "$model" .gir)
    optimizer=$(python3 -c 'import json, sys; print(*json.load(open(sys.argv[1]))[sys.argv[2]]["optimizer"])' "$kit/models/models.json" "$name")
    "$kit/bin/graphc" compile "$model" $optimizer --precision bf16 --cluster dgx-h100 -o "$kit/plans/$name.json" > /dev/null
    ln "$model" "$kit/plans/$name.gir"
done

# Kernels of these plans, where NVIDIA's compiler is here: where the tests have it, or where graphc finds it by itself.
nvrtc=${GPU_DOUBLE_NVRTC:-$(ls "$root"/target/nvrtc/nvidia/*/lib/libnvrtc.so.13 2> /dev/null | head -1 || true)}
LD_LIBRARY_PATH=${nvrtc:+$(dirname "$nvrtc")} "$kit/bin/graphc" kernels "$kit"/plans/*.json --capability 9.0 -o "$kit/kernels" \
    || echo "kernels are not compiled ahead: each is when it is first needed"

commit=$(git rev-parse --short HEAD 2> /dev/null || echo unknown)
version=$("$kit/bin/graphc" --version)
printf '{"version": "%s", "commit": "%s", "profile": "%s"}\n' "$version" "$commit" "$profile" > "$kit/kit.json"
tar -C "$(dirname "$kit")" -czf "$kit.tar.gz" "$(basename "$kit")"
(cd "$kit" && du -sk -- * | sort -rn | awk '{ printf "%8.1f MiB  %s\n", $1 / 1024, $2 }')
size=$(stat -c %s "$kit.tar.gz")
echo "$kit.tar.gz: $(awk "BEGIN { printf \"%.1f\", $size / 1048576 }") MiB"
# What is larger may not get there.
[ "$size" -lt $((48 << 20)) ] || { echo "that is more than 48 MiB" >&2; exit 1; }
