#!/bin/sh
# Prints the table of quality.md. Run it from the root of the repository:
#
#     sh docs/quality.sh FOLDER [TOKENS]
#
# FOLDER has the held-out addresses, one text file each; examples/demo-model/README.md says how to get them. TOKENS ends early.
# CHECKPOINT and VOCABULARY may name another model. Needs jq.
set -eu

folder=$1
tokens=${2:-1000000000}
checkpoint=${CHECKPOINT:-examples/demo-model/demo.safetensors}
vocabulary=${VOCABULARY:-examples/demo-model/vocabulary.txt}
rwkv=${RWKV:-target/release/rwkv}
packs=$(mktemp -d)
trap 'rm -r "$packs"' EXIT

pack() {
    codec=$1
    name=$2
    shift 2
    "$rwkv" -q pack "$checkpoint" --codec "$codec" -o "$packs/$name.rwkv" "$@"
}

# The training saw 256 tokens at a time, so attention looks back as far; the states of the other blocks go on.
measure() {
    "$rwkv" perplexity "$packs/$1.rwkv" "$folder"/*.txt --vocab "$vocabulary" --attention window:256 --limit "$tokens" \
        --against "$packs/f32.rwkv" --json
}

row() {
    name=$1
    bytes=$(wc -c < "$packs/$name.rwkv" | tr -d ' ')
    measure "$name" | jq -r --arg name "$name" --arg bytes "$bytes" '
        def round_to(places): pow(10; places) as $p | (. * $p | round) / $p;
        "| \($name) | \($bytes) | \(.bits_per_byte | round_to(5)) | \(.bits_per_byte - .against.bits_per_byte | round_to(5)) | " +
        "\(.against.kl_mean | round_to(6)) | \(.against.kl_p99 | round_to(5)) | \(100 * .against.same_top1 | round_to(2)) % |"'
}

pack f32 f32
pack f16 f16
pack u8 u8
pack i8 i8
pack u4 u4
pack u4 u4-all --codec-for '*.ffn.key.weight=u4' --codec-for head.weight=u4

echo "| pack | bytes | bits per byte | change | mean divergence | 99th percentile | same likeliest token |"
echo "|---|---|---|---|---|---|---|"
for name in f32 f16 u8 i8 u4 u4-all; do
    row "$name"
done
