for program in catcher catcher-clang catcher-fixed; do
    "$SUITE/built/$program" 40 > "$RESULTS/$program.lines" 2>&1
    echo "status $?" >> "$RESULTS/$program.lines"
    record "$program-uncaught" "$SUITE/built/$program" uncaught
done
