# Objects, assembly and intermediate code by clang, opt and llc, all through the shared library.
lua=$1; bzip2=$2; fixtures=$3
for level in -O2 -Os; do
    out=$RESULTS/lua$level; mkdir -p "$out"
    for source in "$lua"/*.c; do
        clang $level -std=gnu99 -DLUA_COMPAT_5_3 -DLUA_USE_LINUX -c "$source" -o "$out/$(basename "$source" .c).o"
    done
done
mkdir -p "$RESULTS/bzip2" "$RESULTS/fixtures"
for name in blocksort huffman crctable randtable compress decompress bzlib bzip2; do
    clang -O0 -Xclang -disable-O0-optnone -D_FILE_OFFSET_BITS=64 -S -emit-llvm "$bzip2/$name.c" -o "$RESULTS/bzip2/$name.ll"
    opt -S -O3 "$RESULTS/bzip2/$name.ll" -o "$RESULTS/bzip2/$name.opt.ll"
    for target in x86-64 aarch64 riscv64; do
        # Where llc itself stops at a file, it says where it was by addresses.
        llc -O2 -march=$target "$RESULTS/bzip2/$name.opt.ll" -filetype=obj -o "$RESULTS/bzip2/$name.$target.o" 2>&1 \
            | grep -vE '^ *#[0-9]+ ' > "$RESULTS/bzip2/$name.$target.errors"
    done
    llc -O3 -mcpu=haswell "$RESULTS/bzip2/$name.opt.ll" -o "$RESULTS/bzip2/$name.s"
done
for source in "$fixtures"/*/*.c "$fixtures"/*/*.cc; do
    name=$(basename "$source"); compiler=clang
    case $name in *.cc) compiler=clang++ ;; esac
    for flags in -O2 "-O0 -g"; do
        $compiler $flags -pthread -c "$source" -o "$RESULTS/fixtures/$name$(echo "$flags" | tr -d ' =').o"
    done
done
