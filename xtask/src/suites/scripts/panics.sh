# What a backtrace names is the function, whichever piece of it, which relift calls .cold as compilers do.
for program in panics panics-relocs panics-stripped panics-fixed; do
    for how in caught threads nested drop deep format channel slice overflow uncaught; do
        RUST_BACKTRACE=0 record "$program-$how" timeout 60 "$SUITE/built/$program" $how
    done
    RUST_BACKTRACE=1 timeout 60 "$SUITE/built/$program" uncaught 2>&1 | sed -E 's/0x[0-9a-f]+/ADDRESS/g; s/^(thread .[a-z]+.) \([0-9]+\)/\1/; s/\.cold(\.[0-9]+)?$//' > "$RESULTS/$program-backtrace.lines"
done
