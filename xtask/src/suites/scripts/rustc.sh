# The compiler itself, on crates without dependencies: libraries and assembly, optimized and not.
rustc=$1; shift
record version "$rustc" -vV
for crate in "$@"; do
    name=${crate%%:*}; rest=${crate#*:}; edition=${rest%%:*}; source=${rest#*:}
    for level in 0 3; do
        out=$RESULTS/$name-$level; mkdir -p "$out"
        timeout 900 "$rustc" --crate-name "$name" --crate-type rlib --edition "$edition" -C opt-level=$level --cap-lints allow \
            --cfg 'feature="alloc"' --cfg 'feature="std"' --cfg 'feature="unicode"' --emit=link,metadata,asm --out-dir "$out" "$source" > "$out/said" 2>&1
        echo "status $?" >> "$out/said"
    done
done
printf 'fn main() { let x: u32 = "text"; println!("{}", y); }\n' > wrong.rs
record wrong "$rustc" --edition 2024 wrong.rs
printf 'use std::collections::BTreeMap;\nfn main() { let mut m = BTreeMap::new(); for i in 0..100u64 { *m.entry(i %% 7).or_insert(0) += i * i; } println!("{m:?}"); }\n' > right.rs
"$rustc" --edition 2024 -O -C linker=gcc right.rs -o "$RESULTS/right" 2> "$RESULTS/right-said"
record right-runs "$RESULTS/right"
"$rustc" --edition 2024 -C debuginfo=2 -C codegen-units=4 --emit=llvm-ir,mir right.rs --out-dir "$RESULTS" 2>&1
