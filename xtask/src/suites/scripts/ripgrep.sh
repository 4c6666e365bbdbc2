rg=$SUITE/built/bin/rg
root=$1
search() {
    name=$1; shift
    timeout 300 "$rg" --no-config --color never --sort path "$@" > "$RESULTS/$name.lines" 2>&1
    echo "status $?" >> "$RESULTS/$name.lines"
}
count() { # Too many matches to keep: their number and digest.
    name=$1; shift
    timeout 300 "$rg" --no-config --color never "$@" 2>&1 | sort | tee count | md5sum > "$RESULTS/$name"
    wc < count >> "$RESULTS/$name"
}
search word -w unsafe "$root/lifter" "$root/rewriter"
search regex -n 'fn \w+\(&(mut )?self' "$root/lifter/src"
search count -c 'pub\(crate\)' "$root" -g '!target'
search files --files "$root/xtask" -t rust
search context -A 2 -B 1 'enum [A-Z]' "$root/lifter/src"
search multiline -U 'match [^{]*\{\n[^\n]*=>' "$root/checker/src" --multiline-dotall
search json --json -m 1 'struct' "$root/analysis/src/lib.rs" --stats -q
search replace -o '(\w+)::(\w+)' -r '$2 of $1' "$root/profiles/src"
search invert -v . "$root/README.md"
search case -i 'RELIFT' "$root/README.md" --column -b
search fixed -F 'a[i]' "$root/fixtures"
search unicode '\p{Greek}|\p{Lu}{5,}' "$root/README.md" "$root/ARCHITECTURE.md"
search none 'this is nowhere at all' "$root/README.md"
search bad '(unclosed' "$root"
search types --type-list
search missing x /nonexistent
count include '#include <' /usr/include
count define -n '^#\s*define\s+[A-Z_]+\(' /usr/include
count binary -a -c 'GLIBC_2' /usr/lib/x86_64-linux-gnu --max-depth 1
count share -j 8 -i 'copyright' /usr/share/doc --max-filesize 100K
count compressed -z -c bug /usr/share/doc -g '*.gz'
count one-thread -j 1 --no-mmap 'return' /usr/include
count list -l --hidden --no-ignore 'static inline' /usr/include
