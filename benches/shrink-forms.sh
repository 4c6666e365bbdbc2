#!/bin/sh
# Programs built in several forms, stripped, and what `relift shrink` makes of each.
#
#   benches/shrink-forms.sh CORPUS RELIFT FOLDER
#
# CORPUS is a folder of `cargo xtask corpus` (its sources are used), FOLDER takes what is built. Prints one row of a table per program and form.
# Each output is run on a small input and has to say what the input's program says.
set -eu
corpus=$1 relift=$2 folder=$3
mkdir -p "$folder"
export LC_ALL=C

sources() {
    case $1 in
    lua) find "$corpus/build/lua/source/src" -name '*.c' ! -name luac.c ! -name 'ltests.c' ;;
    bzip2) for name in blocksort huffman crctable randtable compress decompress bzlib bzip2; do echo "$corpus/build/bzip2/source/$name.c"; done ;;
    sqlite3) echo "$corpus/build/sqlite3/source/sqlite3.c" "$(find "$corpus/build/sqlite3/source" -name shell.c | head -n 1)" ;;
    esac
}

flags() {
    case $1 in
    lua) echo "-DLUA_USE_LINUX -DLUA_COMPAT_5_3 -w -lm -ldl" ;;
    bzip2) echo "-D_FILE_OFFSET_BITS=64 -w" ;;
    sqlite3) echo "-w -lm -ldl -lpthread -I$corpus/build/sqlite3/source" ;;
    esac
}

form() {
    case $1 in
    O2) echo "-O2" ;;
    O2-relocs) echo "-O2 -Wl,--emit-relocs" ;;
    Os) echo "-Os" ;;
    O2-gc-icf) echo "-O2 -fuse-ld=lld -ffunction-sections -fdata-sections -Wl,--gc-sections,--icf=all" ;;
    O2-relr) echo "-O2 -Wl,-z,pack-relative-relocs" ;;
    O2-mold) echo "-O2 -fuse-ld=mold" ;;
    esac
}

says() {
    case $1 in
    lua) "$2" -e 'local t = {} for i = 1, 2000 do t[i] = (i * 7919) % 1009 end table.sort(t) print(#t, t[1], t[2000], string.format("%q", "a\nb"), pcall(error, "x"))' ;;
    bzip2) "$2" -c <"$0" | "$2" -dc | cksum ;;
    sqlite3) "$2" :memory: 'create table t(a, b); with recursive c(x) as (select 1 union all select x + 1 from c where x < 999) insert into t select x, x * x % 97 from c; select b, count(*), sum(a) from t group by b order by 2, 1 limit 9;' ;;
    esac 2>&1
}

echo "| program | form | stripped | after | change |"
echo "| --- | --- | ---: | ---: | ---: |"
for program in ${PROGRAMS:-lua bzip2 sqlite3}; do
    for form in O2 O2-relocs Os O2-gc-icf O2-relr O2-mold; do
        [ $form != O2-mold ] || command -v mold >/dev/null || { echo "$program $form: mold is not installed" >&2; continue; }
        linked=$folder/$program-$form
        # Words of flags are meant to be split.
        # shellcheck disable=SC2046
        gcc -fPIE -pie $(form $form) $(sources $program) $(flags $program) -o "$linked"
        strip -o "$linked.stripped" "$linked"
        if [ $form = O2-relocs ]; then
            "$relift" shrink "$linked" -o "$linked.long" >/dev/null 2>&1
            strip -o "$linked.shrunk" "$linked.long"
        else
            "$relift" shrink "$linked.stripped" -o "$linked.shrunk" >/dev/null 2>&1
        fi
        [ "$(says $program "$linked")" = "$(says $program "$linked.shrunk")" ] || { echo "$program $form differs" >&2; exit 1; }
        before=$(stat -c %s "$linked.stripped") after=$(stat -c %s "$linked.shrunk")
        change=$(awk "BEGIN { printf \"%+.1f %%\", ($after / $before - 1) * 100 }")
        echo "| $program | $form | $before | $after | $change |"
    done
done
