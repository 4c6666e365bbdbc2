#!/bin/sh
# Builds the sound files that the fuzz targets damage, from the fixtures: one small file for each kind that relift takes.
# Usage: fuzz/seeds/build.sh FOLDER, from the root of the repository. Needs gcc, g++, clang, lld, and relift built for release.
set -eu
out=$1
fixture() { echo fixtures/programs/$1/$1.$2; }
small='-Wl,-z,noseparate-code'

# Position-independent, linked with relocations kept, symbols kept: jump tables of every kind.
gcc -O2 -fPIE -pie $small -Wl,--emit-relocs -o "$out/switch.elf" "$(fixture switch_tables c)"
# Position-independent and stripped: addresses of labels in data.
gcc -O2 -fPIE -pie -s -o "$out/goto.elf" "$(fixture computed_goto c)"
# C++ with exception tables, stripped.
g++ -O2 -fPIE -pie -s $small -o "$out/exceptions.elf" "$(fixture cpp_exceptions cc)"
# At a fixed address, stripped: guard mode.
gcc -O2 -fno-pie -no-pie -s $small -o "$out/fixed.elf" "$(fixture function_tables c)"
# At a fixed address, relocations kept.
gcc -O1 -fno-pie -no-pie $small -Wl,--emit-relocs -o "$out/fixed-relocs.elf" "$(fixture switch_unbounded c)"
# A shared object with an indirect function, relative relocations packed, symbols stripped.
gcc -O2 -shared -fPIC -s $small -Wl,-z,pack-relative-relocs -o "$out/ifunc.elf" "$(fixture ifunc c)"
# By clang and lld: more segments, other tables.
clang -O2 -fuse-ld=lld -fPIE -pie -s -o "$out/lld.elf" "$(fixture cold_paths c)"
# Not optimized, marked for indirect-branch tracking, threads and their variables.
gcc -O0 -fcf-protection=full -fPIE -pie -s $small -pthread -o "$out/tracked.elf" "$(fixture threads_tls c)"
# Static, without a C library.
gcc -O2 -fcf-protection=full -fno-pie -no-pie -static -nostdlib $small -Wl,--emit-relocs -o "$out/static.elf" fuzz/seeds/static.c

# What a program that counts wrote: with and without recorded calls.
for name in switch fixed; do
    target/release/relift instrument "$out/$name.elf" -o "$out/$name.counting" --profile "$(realpath "$out")/$name.rlp"
    "$out/$name.counting" > "$out/$name.printed" || test $? -eq 42
    mv "$out/$name.rlp" "$out/$name.profile"
    rm "$out/$name.counting" "$out/$name.printed"
done
