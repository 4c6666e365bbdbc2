#!/bin/sh
# What `relift shrink` makes of programs that were linked with `--emit-relocs`, and of the same programs stripped.
#
#   benches/shrink-own.sh CORPUS RELIFT FOLDER
#
# CORPUS is a folder of `cargo xtask corpus` and `cargo xtask bench`, FOLDER takes what is made. Prints one row of a table per program: bytes stripped, shrunk from
# the stripped file, and shrunk from the one with relocations and then stripped. PROGRAMS chooses.
set -eu
corpus=$1 relift=$2 folder=$3
mkdir -p "$folder"
export LC_ALL=C

change() { awk "BEGIN { printf \"%+.1f %%\", ($2 / $1 - 1) * 100 }"; }

echo "| program | stripped | shrunk | change | with relocations, then stripped | change |"
echo "| --- | ---: | ---: | ---: | ---: | ---: |"
for program in ${PROGRAMS:-lua sqlite3 cpython redis postgres cppcheck ripgrep bzip2 zstd perl tcc}; do
    linked=$corpus/$program/relocs/$program made=$folder/$program
    [ -f "$linked" ] || continue
    strip -o "$made.stripped" "$linked"
    "$relift" shrink "$made.stripped" -o "$made.plain" >"$made.plain.log" 2>&1
    "$relift" shrink "$linked" -o "$made.long" >"$made.relocs.log" 2>&1
    strip -o "$made.relocs" "$made.long"
    rm "$made.long"
    before=$(stat -c %s "$made.stripped") plain=$(stat -c %s "$made.plain") relocs=$(stat -c %s "$made.relocs")
    echo "| $program | $before | $plain | $(change "$before" "$plain") | $relocs | $(change "$before" "$relocs") |"
done
