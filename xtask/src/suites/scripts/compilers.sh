# Objects of two real programs and of the project's fixtures, at several levels, with and without link-time optimization; gold links them.
lua=$1; bzip2=$2; fixtures=$3
for level in -O2 -Os; do
    out=$RESULTS/lua$level; mkdir -p "$out"
    for source in "$lua"/*.c; do
        gcc $level -std=gnu99 -DLUA_COMPAT_5_3 -DLUA_USE_LINUX -c "$source" -o "$out/$(basename "$source" .c).o"
    done
    mv "$out/luac.o" luac.o
    gcc -fuse-ld=gold "$out"/*.o -o "$out/lua" -Wl,-E -lm -ldl
    record "lua-runs$level" "$out/lua" -e 'local t = {} for i = 1, 1000 do t[i] = i * i end print(#table.concat(t, " "), _VERSION, pcall(error, "x"))'
    rm luac.o
done
for flags in "-O3 -march=haswell" "-O1 -g"; do
    out="$RESULTS/bzip2$(echo "$flags" | tr -d ' =')"; mkdir -p "$out"
    for name in blocksort huffman crctable randtable compress decompress bzlib bzip2; do
        gcc $flags -D_FILE_OFFSET_BITS=64 -c "$bzip2/$name.c" -o "$out/$name.o"
    done
    gcc -fuse-ld=gold "$out"/*.o -o "$out/bzip2"
done
mkdir -p "$RESULTS/lto" "$RESULTS/fixtures"
gcc -O2 -flto=1 -fno-fat-lto-objects -frandom-seed=1 -D_FILE_OFFSET_BITS=64 -o "$RESULTS/lto/bzip2" \
    $(for name in blocksort huffman crctable randtable compress decompress bzlib bzip2; do echo "$bzip2/$name.c"; done)
gcc -O2 -flto=1 -flto-partition=one -frandom-seed=1 -std=gnu99 -DLUA_COMPAT_5_3 -DLUA_USE_LINUX -o "$RESULTS/lto/lua" \
    $(ls "$lua"/*.c | grep -v luac) -Wl,-E -lm -ldl
strip "$RESULTS/lto/bzip2" "$RESULTS/lto/lua"
for source in "$fixtures"/*/*.c "$fixtures"/*/*.cc; do
    name=$(basename "$source"); compiler=gcc
    case $name in *.cc) compiler=g++ ;; esac
    for flags in -O2 "-O3 -g" "-O1 -flto -frandom-seed=1"; do
        $compiler $flags -pthread -c "$source" -o "$RESULTS/fixtures/$name$(echo "$flags" | tr -d ' =').o"
    done
    $compiler -fuse-ld=gold -pthread "$RESULTS/fixtures/$name-O2.o" -o "$RESULTS/fixtures/$name.gold" -lm -ldl
    $compiler -Wall -Wextra -fsyntax-only "$source" > "$RESULTS/fixtures/$name.warnings" 2>&1
done
printf 'int f( { return x }\n' > bad.c
record wrong gcc -c bad.c
record gold-version ld.gold --version
record ldconfig-print /usr/sbin/ldconfig -p
record ldconfig-version /usr/sbin/ldconfig --version
record ldconfig-dry /usr/sbin/ldconfig -v -N -X
/usr/sbin/ldconfig -C "$PWD/cache" -X 2> /dev/null; echo "status $?" > "$RESULTS/ldconfig-cache-status"
cp cache "$RESULTS/ldconfig-cache"
mkdir -p libs && cp /usr/lib/x86_64-linux-gnu/libz.so.1 libs/ && /usr/sbin/ldconfig -n -v libs > "$RESULTS/ldconfig-links" 2>&1; ls libs >> "$RESULTS/ldconfig-links"
