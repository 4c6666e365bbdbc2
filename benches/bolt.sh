#!/bin/sh
# What LLVM BOLT makes of the programs of the corpus, with the workloads that relift is trained by: bolt.sh CORPUS > table.md
# Needs Debian's package bolt-22 and what `cargo xtask corpus CORPUS` built. BOLT's own instrumentation makes the profile.
set -e
corpus=$(cd "$1" && pwd)
workloads=$(cd "$(dirname "$0")/../fixtures/workloads" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
options='-reorder-blocks=ext-tsp -reorder-functions=cdsort -split-functions -split-all-cold -icf=all -dyno-stats'

# first WORDS LOG: the number before the first such line; change WORDS LOG: what the second one says in parentheses
first() { sed -n "s/^ *\([0-9]*\) : $1\$/\1/p" "$2" | head -n 1; }
after() { sed -n "s/^ *\([0-9]*\) : $1 (.*/\1/p" "$2" | head -n 1; }
change() { sed -n "s/^.* : $1 (\(.*\)%).*/\1/p" "$2" | head -n 1 | sed 's/=/0.0/'; }

echo '| program | form | taken branches before | after | change | instructions | stripped size before | after | seconds | peak memory | functions not optimized |'
echo '| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |'
for program in lua sqlite3 bzip2 zstd; do
  for form in relocs nonpie-relocs clang-relocs plain stripped; do
    input=$corpus/$program/$form/$program
    [ -f "$input" ] || continue
    rm -rf "$scratch/work" "$scratch"/profile*
    mkdir -p "$scratch/work" "$scratch/bin"
    if ! llvm-bolt-22 "$input" -instrument --instrumentation-file="$scratch/profile" --instrumentation-file-append-pid \
      -o "$scratch/bin/$program" > "$scratch/log" 2>&1; then
      echo "| $program | $form | refused: $(sed -n 's/^BOLT-ERROR: //p' "$scratch/log" | head -n 1) | | | | | | | | |"
      continue
    fi
    (cd "$scratch/work" && env -i PATH="$PATH" HOME="$scratch/work" LC_ALL=C TZ=UTC sh "$workloads/$program/train.sh" "$scratch/bin/$program" > /dev/null 2>&1)
    merge-fdata-22 "$scratch"/profile.* > "$scratch/profile" 2> /dev/null
    # shellcheck disable=SC2086
    /usr/bin/env time -f '%e %M' -o "$scratch/time" llvm-bolt-22 "$input" -data="$scratch/profile" $options -o "$scratch/output" > "$scratch/log" 2>&1
    strip -o "$scratch/before" "$input"
    strip -o "$scratch/after" "$scratch/output" 2> /dev/null
    read -r seconds kilobytes < "$scratch/time"
    echo "| $program | $form | $(first 'taken branches' "$scratch/log") | $(after 'taken branches' "$scratch/log")" \
      "| $(change 'taken branches' "$scratch/log") % | $(change 'executed instructions' "$scratch/log") %" \
      "| $(stat -c %s "$scratch/before") | $(stat -c %s "$scratch/after") | $seconds | $((kilobytes / 1024)) MB" \
      "| $(sed -n 's/^BOLT-INFO: \([0-9]*\) functions with profile could not be optimized/\1/p' "$scratch/log") |"
  done
done
