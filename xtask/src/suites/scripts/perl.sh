# Each file of perl's core tests, with the switches of its first line, from the folder where it expects to be.
cp -a "$SUITE/tree/." .
cd t
# Those left out try all of Unicode, or the same again in a thread, for minutes.
for file in $(ls base/*.t cmd/*.t comp/*.t io/*.t re/*.t uni/*.t mro/*.t op/*.t | grep -vE 're/(uniprops|fold_grind|.*_thr|speed|charset)|op/(lc|sprintf2|pack)\.t|uni/(lower|upper|title)'); do
    switches=$(head -n 1 "$file" | sed -n 's/^#!.*perl//p')
    name=$(echo "$file" | tr / -)
    timeout 60 /usr/bin/perl $switches "$file" > "$RESULTS/$name.tap" 2> /dev/null < /dev/null
    echo "status $?" >> "$RESULTS/$name.tap"
done
