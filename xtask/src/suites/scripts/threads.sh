for program in threads threads-fixed threads-descriptors; do
    "$SUITE/built/$program" "$SUITE/built/libthread-second.so" > "$RESULTS/$program.lines" 2>&1
    echo "status $?" >> "$RESULTS/$program.lines"
done
