#!/bin/bash
# Rehearses the kit without a card: it is built, unpacked into an empty folder, and all of its parts run there on the double of NVIDIA's
# libraries, with small sizes and nothing in the environment but that. NVRTC must be installed, as for the tests of cards.
#
#     benchmarks/card/rehearse.sh [FOLDER]
#
# What the machine has not, such as ncu or PyTorch, is said as not there. The double lies beside the kit and never in it.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
place=$(realpath -m "${1:-$root/target/card-rehearsal}")
nvrtc=${GPU_DOUBLE_NVRTC:-$(ls "$root"/target/nvrtc/nvidia/*/lib/libnvrtc.so.13 2> /dev/null | head -1)}
[ -f "$nvrtc" ] || { echo "NVRTC is not there: say GPU_DOUBLE_NVRTC=FILE" >&2; exit 1; }
profile=${CARD_PROFILE:-dev}
built=$root/target/$([ "$profile" = dev ] && echo debug || echo "$profile")

CARD_PROFILE=$profile "$root/benchmarks/card/build.sh" "$place/made/card"
# The double is a library of its own only where libraries are asked for.
(cd "$root" && cargo build --workspace --profile "$profile" --lib)
rm -rf "$place/there" "$place/double" "$place/out"
mkdir -p "$place/there" "$place/double" "$place/out"
tar -C "$place/there" -xzf "$place/made/card.tar.gz"
# The machine with the card has no folder in which the kit was made.
rm -rf "$place/made/card"
if find "$place/there" -name '*double*' | grep -q .; then
    echo "the double is in the kit" >&2
    exit 1
fi
[ -f "$built/libgpu_double.so" ] || { echo "the double is not there: $built/libgpu_double.so" >&2; exit 1; }
for name in libcuda.so.1 libcuda.so libnvrtc.so.13 libnvrtc.so libcublasLt.so.13 libcublasLt.so libnccl.so.2 libnccl.so; do
    ln -s "$built/libgpu_double.so" "$place/double/$name"
done

cd "$place/there/card"
for part in right fast why; do
    env -i PATH=/usr/bin:/bin LD_LIBRARY_PATH="$place/double" GPU_DOUBLE_NVRTC="$nvrtc" GPU_DOUBLE_DEVICES=1 CARD_SMALL=1 \
        ./run.sh $part "$place/out/$part"
done
files=$(find "$place/out" -type f | wc -l)
env -i PATH=/usr/bin:/bin python3 table.py "$place"/out/* > "$place/table.md"
cat "$place/table.md"
for part in right fast why; do
    [ "$(find "$place/out/$part" -type f | wc -l)" -le 8 ] || { echo "part $part has too many files" >&2; exit 1; }
    [ -z "$(find "$place/out/$part" -size +16M)" ] || { echo "part $part has too large a file" >&2; exit 1; }
    # An item that is right on a card and the double alike must have ended well.
    if grep -E '"ended": "(failed|timeout)"' "$place/out/$part/$part.jsonl"; then
        echo "an item of part $part has failed" >&2
        exit 1
    fi
done
echo "rehearsed: $files files of results, the table is $place/table.md"
