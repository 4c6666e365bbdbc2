# relift's own integration tests, run with the program in its place; then what it makes of itself, and of two other programs.
relift=$1; root=$2; seed=$3; shift 3
for test in "$@"; do
    name=$(basename "$test" | sed 's/-[0-9a-f]*$//')
    (cd "$root" && CARGO_MANIFEST_DIR=$root timeout 3000 "$test" --test-threads 2 2>&1) | grep -E '^test .* \.\.\. |^test result' | sed 's/; finished in .*//' | sort > "$RESULTS/$name.lines"
done
for file in "$SUITE/relift" /usr/bin/xz /usr/bin/git; do
    name=$(basename "$file")
    "$relift" optimize "$file" -o "$RESULTS/$name.again" --shuffle "$seed" --verify --no-check > /dev/null 2> "$RESULTS/$name.said"
    "$relift" optimize "$file" -o "$RESULTS/$name.in-order" --verify --no-check > /dev/null 2>> "$RESULTS/$name.said"
    "$relift" inspect "$file" --pinned > "$RESULTS/$name.pinned" 2>&1
done
# The output of the output still works.
"$RESULTS/relift.again" optimize /usr/bin/xz -o "$RESULTS/xz.by-again" --shuffle "$seed" --verify --no-check > /dev/null 2>&1
cmp "$RESULTS/xz.again" "$RESULTS/xz.by-again" > "$RESULTS/again-agrees" 2>&1
"$RESULTS/relift.again" check /usr/bin/xz "$RESULTS/xz.again" > "$RESULTS/again-checks" 2>&1
record demo "$RESULTS/relift.again" inspect /usr/bin/xz
